//! A GPU through Vulkan.

mod in_place;
mod layer;
mod open;
mod ring;
mod service;
mod share;

pub(crate) use open::Opened;
pub(crate) use service::Service;
