//! The properties of a request that matter at its end.

use super::request::{Instruction, Request};
use crate::message::Mode;

/// The properties of a request that matter at its end.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Work {
    /// Workers receive their stages.
    Distributing,
    /// Workers receive parameters.
    Loading,
    /// Workers receive some of the parameters that come.
    LoadingPart,
    /// An optimizer with fresh state.
    SettingOptimizer,
    /// A round that may leave gradients, which are void if it fails.
    Training,
    /// The placement of the stages changes.
    MembershipChange,
    /// Workers send parameters, or store snapshots for each other.
    Sending,
    /// Anything else.
    Other,
}

impl Work {
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Instruct(Instruction::Distribute) => Work::Distributing,
            Request::Instruct(Instruction::LoadState { more: true, .. }) => Work::LoadingPart,
            Request::Instruct(Instruction::LoadState { .. })
            | Request::Instruct(Instruction::RestoreSnapshot { .. }) => Work::Loading,
            Request::SendState(_) | Request::Instruct(Instruction::StoreSnapshot(_)) => {
                Work::Sending
            }
            Request::Instruct(Instruction::SetOptimizer(_)) => Work::SettingOptimizer,
            Request::Run(run) if run.mode == Mode::Train => Work::Training,
            Request::ChangeMembership(_) => Work::MembershipChange,
            _ => Work::Other,
        }
    }
}
