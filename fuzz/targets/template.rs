//! Any text as a chat template, rendered with a short conversation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ls_model::ChatTemplate;
use ls_model::template::{Date, Message};

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::new(source) else { return };
    let messages = [Message::new("user", "Hi"), Message::new("assistant", "Yo")];
    let _ = template.render(&messages, true, "<s>", "</s>", Some(Date::from_unix(0)));
});
