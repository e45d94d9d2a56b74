//! All that can be said of a machine's Vulkan: for a doctor's page.

use std::path::Path;

use crate::error::{Result, VkError};
use crate::measure::{self, CopyRates, RoundTrip};
use crate::{Choice, Device, DeviceInfo, DeviceKind, Instance, Limits, SelfTest, Validation};

/// Round trips that are measured in each way of control.
const ROUND_TRIPS: usize = 500;

/// What there is, and what is in the way.
#[derive(Debug)]
pub struct Report {
    /// Devices that the drivers name; empty where there is a problem before them.
    pub devices: Vec<DeviceReport>,
    /// The loader or the drivers are missing.
    pub problem: Option<VkError>,
}

/// One device.
#[derive(Debug)]
pub struct DeviceReport {
    /// Name, kind, versions.
    pub info: DeviceInfo,
    /// What was found when it was opened and tried out; `None`: it was not.
    pub outcome: Option<Result<Findings>>,
}

/// What a device can do.
#[derive(Debug)]
pub struct Findings {
    /// Capabilities.
    pub limits: Limits,
    /// What passed.
    pub self_test: SelfTest,
    /// Measured copies.
    pub copies: CopyRates,
    /// Measured round trips, the best way of control first.
    pub round_trips: Vec<RoundTrip>,
}

impl Report {
    /// Lists all devices and tries those out that are `wanted`. Results of self-tests are kept in
    /// `cache`, if there is one.
    pub fn new(cache: Option<&Path>, wanted: &dyn Fn(&DeviceInfo) -> bool) -> Self {
        let found = Instance::new(Validation::Off).and_then(|i| i.devices().map(|d| (i, d)));
        let (instance, infos) = match found {
            Ok((_, infos)) if infos.is_empty() => {
                return Self { devices: vec![], problem: Some(VkError::NoDriver) };
            }
            Ok(found) => found,
            Err(error) => return Self { devices: vec![], problem: Some(error) },
        };
        let look = |info: DeviceInfo| {
            if !wanted(&info) {
                return DeviceReport { info, outcome: None };
            }
            let outcome = Device::open(&instance, &Choice::Index(info.index)).and_then(|device| {
                let self_test = match cache {
                    Some(folder) => SelfTest::cached(&device, folder)?,
                    None => SelfTest::run(&device)?,
                };
                // Several times what caches hold; a processor has less of both.
                let bytes = if info.kind == DeviceKind::Cpu { 32 << 20 } else { 512 << 20 };
                let copies = measure::copy_rates(&device, bytes)?;
                let round_trips = measure::round_trips(&device, &self_test, ROUND_TRIPS)?;
                Ok(Findings { limits: device.limits().clone(), self_test, copies, round_trips })
            });
            DeviceReport { info, outcome: Some(outcome) }
        };
        Self { devices: infos.into_iter().map(look).collect(), problem: None }
    }
}
