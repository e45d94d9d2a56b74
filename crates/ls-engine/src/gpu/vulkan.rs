//! A GPU through Vulkan.

mod layer;
mod open;
mod ring;
mod service;
mod share;

pub(crate) use open::Opened;
pub(crate) use service::Service;
