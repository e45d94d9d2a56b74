//! Messages of the validation layers, collected where a test can look at them.

#![allow(unsafe_code)] // calls of the driver, and memory that it shares

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;

/// Warnings and errors that the validation layers reported, in order.
///
/// A message means that this crate, or whoever uses its `raw` side, breaks a rule of the interface.
#[derive(Clone, Debug, Default)]
pub struct Messages(Arc<Mutex<Vec<String>>>);

impl Messages {
    /// Takes all messages so far.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the loader is told; `messages` must outlive the messenger.
pub(crate) fn create_info(messages: &Messages) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    type Severity = vk::DebugUtilsMessageSeverityFlagsEXT;
    type Kind = vk::DebugUtilsMessageTypeFlagsEXT;
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::WARNING | Severity::ERROR)
        .message_type(Kind::VALIDATION | Kind::PERFORMANCE)
        .pfn_user_callback(Some(callback))
        .user_data(Arc::as_ptr(&messages.0).cast_mut().cast())
}

unsafe extern "system" fn callback(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    if data.is_null() || user.is_null() {
        return vk::FALSE;
    }
    // SAFETY: the layer hands a valid struct for the time of the call, and strings that end.
    let text = unsafe {
        let message = (*data).p_message;
        if message.is_null() { c"(no text)" } else { CStr::from_ptr(message) }
    };
    // SAFETY: `user` is what `create_info` got from an Arc that the instance keeps until its
    // messenger is destroyed.
    let list = unsafe { &*user.cast::<Mutex<Vec<String>>>() };
    let text = text.to_string_lossy().into_owned();
    list.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    vk::FALSE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_once() {
        let messages = Messages::default();
        messages.0.lock().unwrap().push("a".into());
        assert_eq!(messages.clone().take(), ["a"]);
        assert!(messages.take().is_empty());
    }
}
