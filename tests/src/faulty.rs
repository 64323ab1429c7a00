//! A worker in the test's own process, with one fault.

use crate::device::device;
use crate::programs::{BossAddress, TIMEOUT};
use link::{LinkError, WorkerInfo};
use pipeline::message::{Failure, FailureKind};
use pipeline::task::{EarlyOutput, Outcome, Task, TaskError};
use runtime::{ComputeThread, LeaveSignal, PendingWork, SnapshotStore, TaskTensor};
use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::Duration;
use worker::StageCompute;

/// A fault of a worker during its work.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Fault {
    /// A task panics.
    Panics,
    /// A task has no memory.
    HasNoMemory,
    /// A task never ends.
    NeverEnds,
    /// Every update is twice as large as it should be.
    Miscounts,
}

/// A compute thread with one fault.
struct Faulty {
    compute: StageCompute,
    updates: u32,
    fault: Fault,
    after: u32,
    /// Disconnects when the test ends.
    over: mpsc::Receiver<()>,
}

impl runtime::Compute for Faulty {
    fn prepare(&mut self, task: &Task<TaskTensor>) {
        self.compute.prepare(task);
    }

    fn run(
        &mut self,
        task: Task<TaskTensor>,
        emit: &mut dyn FnMut(EarlyOutput<TaskTensor>),
    ) -> Result<Outcome<TaskTensor>, TaskError> {
        self.updates += u32::from(matches!(task, Task::OptimStep { .. }));
        // A task within a step, or the first task of all, which makes the layers.
        let strikes = self.updates >= self.after
            && (self.after == 0 || matches!(task, Task::Backward { .. }));
        match self.fault {
            Fault::Miscounts => match task {
                Task::OptimStep { stage, mut update, tied, health } => {
                    update.lr *= 2.0;
                    self.compute.run(Task::OptimStep { stage, update, tied, health }, emit)
                }
                other => self.compute.run(other, emit),
            },
            _ if !strikes => self.compute.run(task, emit),
            Fault::Panics => panic!("as a defect would"),
            Fault::HasNoMemory => {
                let kind = FailureKind::OutOfMemory;
                Err(Failure { kind, ..Failure::new("out of memory") }.into())
            }
            Fault::NeverEnds => {
                self.over.recv().unwrap_err();
                Err(Failure::new("nobody hears this").into())
            }
        }
    }

    fn pending(&mut self) -> Option<Box<dyn PendingWork>> {
        self.compute.pending()
    }
}

/// Joins as soon as a place is free, and works until the boss or the worker ends it. The fault
/// strikes after `after` updates of stages.
pub async fn run_faulty_worker(
    at: &BossAddress,
    (fault, after): (Fault, u32),
    over: mpsc::Receiver<()>,
) -> LinkError {
    let (ticket, boss) =
        (at.ticket.parse().unwrap(), (Ipv4Addr::LOCALHOST, at.port.parse().unwrap()).into());
    let endpoint = link::worker_endpoint(&ticket, &[boss]).unwrap();
    let info = WorkerInfo { process: std::process::id(), ..WorkerInfo::default() };
    let joined = async {
        loop {
            match link::join(&endpoint, &[boss], &ticket, info.clone()).await {
                Ok(membership) => break membership,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let membership = tokio::time::timeout(TIMEOUT, joined).await.unwrap();
    let compute = ComputeThread::start(move || {
        tensor::threads::set_count(1);
        Faulty { compute: StageCompute::new(device()), updates: 0, fault, after, over }
    });
    let compute = compute.unwrap().task_limit(Duration::from_secs(2));
    let (snapshots, leave) = (SnapshotStore::default(), LeaveSignal::default());
    runtime::serve(membership, &endpoint, &ticket, compute, None, snapshots, &leave)
        .await
        .unwrap_err()
}
