//! Any text as a join ticket: what is read as one is written as one that means the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use link::Ticket;

fuzz_target!(|text: &str| {
    if let Ok(ticket) = text.parse::<Ticket>() {
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
    }
});
