//! The parts of a session that its machines use.

use super::inbox::Inbox;
use super::links::Links;
use super::membership::Membership;
use super::outbox::Outbox;

/// The parts that a machine uses to send tensors to other workers.
pub(super) struct Context<'a> {
    pub(super) membership: &'a Membership,
    pub(super) links: &'a Links,
    pub(super) outbox: &'a mut Outbox,
}

/// The parts that a round uses.
pub(super) struct RoundContext<'a> {
    pub(super) membership: &'a Membership,
    pub(super) links: &'a Links,
    pub(super) inbox: &'a mut Inbox,
    pub(super) outbox: &'a mut Outbox,
}
