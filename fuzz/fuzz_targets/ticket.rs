//! Reads any text as a join ticket: an accepted ticket is the same after writing and reading.
#![no_main]

use libfuzzer_sys::fuzz_target;
use link::Ticket;

fuzz_target!(|text: &str| {
    if let Ok(ticket) = text.parse::<Ticket>() {
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
    }
});
