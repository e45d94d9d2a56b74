//! Vulkan's devices, and what can be relied on.

use ls_vk::{Choice, DeviceInfo, DeviceKind, DeviceReport, Findings, Limits, Report};
use serde::Serialize;

use crate::args::device::{gpu_cache, named_gpu};
use crate::output;

/// All of Vulkan on this machine.
#[derive(Debug, Serialize)]
pub struct Vulkan {
    /// The loader or every driver is missing, and what to install.
    problem: Option<String>,
    devices: Vec<Gpu>,
}

/// One device.
#[derive(Debug, Serialize)]
struct Gpu {
    name: String,
    kind: &'static str,
    vulkan: String,
    driver: String,
    /// Whether `--device vulkan` takes it.
    is_chosen: bool,
    /// Why it cannot be used.
    problem: Option<String>,
    /// `None`: it was not tried out.
    found: Option<Found>,
}

/// What was found when it was tried out.
#[derive(Debug, Serialize)]
struct Found {
    limits: Sizes,
    kernels: Vec<String>,
    /// Ways to hand work over that passed the self-test; the first is taken.
    control: Vec<String>,
    /// What did not pass the self-test.
    failures: Vec<String>,
    round_trips: Vec<Trip>,
    copies: Copies,
}

/// The limits that matter.
#[derive(Debug, Serialize)]
struct Sizes {
    max_buffer_bytes: u64,
    has_many_buffers: bool,
    subgroup_size: Option<u32>,
    integer_dot: bool,
    float16: bool,
    memory_model: bool,
    timeline_semaphore: bool,
    mapped_device_memory: bool,
    unified_memory: bool,
    host_import_alignment: Option<u64>,
    transfer_queue: bool,
    processors: Option<u32>,
}

/// The time of work without anything to do.
#[derive(Debug, Serialize)]
struct Trip {
    control: String,
    median_us: f64,
    p99_us: f64,
}

/// In 10⁹ bytes per second.
#[derive(Debug, Serialize)]
struct Copies {
    on_device_gb_per_s: f64,
    to_mapped_gb_per_s: Option<f64>,
    upload_gb_per_s: f64,
}

impl Vulkan {
    /// Lists all devices, and tries out the one that is `named`, or all that do not compute on the
    /// processor.
    pub fn examine(named: Option<String>) -> Self {
        let named = named.or_else(named_gpu).map(|name| name.to_lowercase());
        let is_wanted = |info: &DeviceInfo| match &named {
            Some(name) => info.name.to_lowercase().contains(name),
            None => info.kind != DeviceKind::Cpu,
        };
        let report = Report::new(gpu_cache().as_deref(), &is_wanted);
        let infos: Vec<DeviceInfo> = report.devices.iter().map(|d| d.info.clone()).collect();
        let choice = named.clone().map_or(Choice::Best, Choice::Named);
        let chosen = choice.among(&infos);
        let devices = report.devices.into_iter().enumerate();
        let mut problem = report.problem.map(|problem| problem.to_string());
        if let (Some(name), None, None) = (&named, chosen, &problem) {
            problem = Some(format!("no device is called {name}"));
        }
        let devices = devices.map(|(i, device)| Gpu::of(device, chosen == Some(i))).collect();
        Self { problem, devices }
    }

    /// For people.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows: Vec<_> = self.problem.iter().map(|p| ("vulkan", p.clone())).collect();
        for gpu in &self.devices {
            rows.extend(gpu.rows());
        }
        if self.problem.is_none() && !self.devices.iter().any(|gpu| gpu.is_chosen) {
            let only = "only devices that compute on the processor: --device vulkan takes none unless \
                        --gpu names it";
            rows.push(("vulkan", only.to_owned()));
        }
        rows
    }
}

impl Gpu {
    fn of(device: DeviceReport, is_chosen: bool) -> Self {
        let info = device.info;
        let (found, problem) = match device.outcome {
            None => (None, None),
            Some(Ok(findings)) => (Some(Found::of(&findings, &info)), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        Self {
            kind: match info.kind {
                DeviceKind::Discrete => "discrete",
                DeviceKind::Integrated => "integrated",
                DeviceKind::Virtual => "virtual",
                DeviceKind::Cpu => "processor",
                DeviceKind::Other => "other",
            },
            vulkan: format!("{}.{}", info.api.0, info.api.1),
            driver: driver(&info),
            name: info.name,
            is_chosen,
            problem,
            found,
        }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let Self { name, kind, vulkan, driver, .. } = self;
        let mark = if self.is_chosen { "; taken by --device vulkan" } else { "" };
        let mut rows =
            vec![("vulkan", format!("{name} ({kind}), Vulkan {vulkan}, driver {driver}{mark}"))];
        if let Some(problem) = &self.problem {
            rows.push(("", format!("cannot be used: {problem}")));
        }
        match &self.found {
            Some(found) => rows.extend(found.lines().into_iter().map(|line| ("", line))),
            None if self.problem.is_none() => rows.push(("", "not tried out; see --gpu".into())),
            None => {}
        }
        rows
    }
}

/// The driver's version, as its vendor packs it.
fn driver(info: &DeviceInfo) -> String {
    let version = info.driver;
    match info.vendor {
        // NVIDIA
        0x10de => format!("{}.{}.{}", version >> 22, version >> 14 & 0xff, version >> 6 & 0xff),
        _ => format!("{}.{}.{}", version >> 22, version >> 12 & 0x3ff, version & 0xfff),
    }
}

impl Found {
    fn of(findings: &Findings, info: &DeviceInfo) -> Self {
        let Findings { limits, self_test, copies, round_trips } = findings;
        let us = |time: std::time::Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
        Self {
            limits: Sizes::of(limits),
            kernels: self_test.variants.iter().map(|v| format!("{v:?}").to_lowercase()).collect(),
            control: self_test.modes_for(info.kind).iter().map(ToString::to_string).collect(),
            failures: self_test.failures.clone(),
            round_trips: round_trips
                .iter()
                .map(|trip| Trip {
                    control: trip.mode.to_string(),
                    median_us: us(trip.median),
                    p99_us: us(trip.p99),
                })
                .collect(),
            copies: Copies {
                on_device_gb_per_s: copies.on_device,
                to_mapped_gb_per_s: copies.to_mapped,
                upload_gb_per_s: copies.upload,
            },
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("limits: {}", self.limits.line())];
        let or_none = |names: &[String]| match names {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        lines.push(format!(
            "self-test: kernels {}; control {}",
            or_none(&self.kernels),
            or_none(&self.control)
        ));
        lines.extend(self.failures.iter().map(|failure| format!("failed: {failure}")));
        let trip =
            |t: &Trip| format!("{} {:.1} µs (99 %: {:.1})", t.control, t.median_us, t.p99_us);
        let trips: Vec<String> = self.round_trips.iter().map(trip).collect();
        lines.push(format!("round trip: {}", or_none(&trips)));
        let mapped = self.copies.to_mapped_gb_per_s;
        let mapped = mapped.map_or("none".to_owned(), |rate| format!("{rate:.1} GB/s"));
        lines.push(format!(
            "copies: on the device {:.1} GB/s, by the host to mapped memory {mapped}, uploads {:.1} GB/s",
            self.copies.on_device_gb_per_s, self.copies.upload_gb_per_s
        ));
        lines
    }
}

impl Sizes {
    fn of(limits: &Limits) -> Self {
        Self {
            max_buffer_bytes: limits.max_storage_range,
            has_many_buffers: limits.dynamic_buffer_index,
            subgroup_size: limits.subgroup_arithmetic.then_some(limits.subgroup_size),
            integer_dot: limits.integer_dot,
            float16: limits.float16,
            memory_model: limits.memory_model,
            timeline_semaphore: limits.timeline_semaphore,
            mapped_device_memory: limits.mapped_device_memory,
            unified_memory: limits.unified_memory,
            host_import_alignment: limits.host_import,
            transfer_queue: limits.transfer_queue,
            processors: limits.processors,
        }
    }

    fn line(&self) -> String {
        let mut parts = vec![format!("buffers of {}", output::bytes(self.max_buffer_bytes))];
        parts.push(match self.subgroup_size {
            Some(n) => format!("subgroups of {n}"),
            None => "no subgroups".to_owned(),
        });
        let flags = [
            (self.has_many_buffers, "several buffers"),
            (self.integer_dot, "products of bytes"),
            (self.float16, "halves"),
            (self.memory_model, "memory model"),
            (self.timeline_semaphore, "counting semaphores"),
            (self.unified_memory, "unified memory"),
            (self.mapped_device_memory && !self.unified_memory, "mapped memory"),
            (self.host_import_alignment.is_some(), "host memory import"),
            (self.transfer_queue, "transfer queue"),
        ];
        parts.extend(flags.iter().filter(|(has, _)| *has).map(|(_, name)| (*name).to_owned()));
        let lacks = flags.iter().filter(|(has, name)| !has && !name.ends_with(" memory"));
        let lacks: Vec<&str> = lacks.map(|(_, name)| *name).collect();
        let lacks =
            if lacks.is_empty() { String::new() } else { format!("; no {}", lacks.join(", ")) };
        parts.join(", ") + &lacks
    }
}
