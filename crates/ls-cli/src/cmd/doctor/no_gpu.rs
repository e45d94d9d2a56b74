//! What stands in for GPUs in programs that cannot use one.

use serde::Serialize;

/// Why there is none.
#[derive(Debug, Serialize)]
pub struct Vulkan {
    problem: &'static str,
}

impl Vulkan {
    /// Looks at nothing.
    pub fn examine(_: Option<String>) -> Self {
        Self { problem: "this program was built without it, or linked statically" }
    }

    /// For people.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        vec![("vulkan", self.problem.to_owned())]
    }
}
