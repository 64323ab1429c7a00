//! A boss and its workers in one process, over real QUIC on the loopback interface.

use crate::device::device_of;
use crate::TestCluster;
use link::{Identity, Listener, ListenerEvent, Payload, Slots, Transport, WorkerInfo};
use pipeline::boss::{Answer, Request, SendState, Setup};
use pipeline::message::Failure;
use pipeline::replicas::BucketBytes;
use pipeline::Plan;
use runtime::{ComputeThread, Handle, StateHead, StatePart};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tensor::nccl::Nccl;
use tokio::runtime::Runtime;
use worker::StageCompute;

/// How workers reach each other.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Connectivity {
    /// Through shared memory.
    SharedMemory,
    /// Over QUIC.
    Quic,
    /// Through the boss.
    Relayed,
}

/// Workers behind sockets.
pub struct SocketCluster {
    handle: Handle,
    runtime: Runtime,
    _keys: tempfile::TempDir,
}

impl SocketCluster {
    /// Makes workers for a plan with this connectivity.
    pub fn new(plan: Plan, seed: u64, reach: Connectivity) -> Self {
        Self::summing_with(None, plan, seed, reach)
    }

    /// Same as [`Self::new`], but compute threads sum with this library.
    pub fn summing_with(
        nccl: Option<Arc<Nccl>>,
        plan: Plan,
        seed: u64,
        reach: Connectivity,
    ) -> Self {
        let keys = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create_in(keys.path()).unwrap();
        let runtime = Runtime::new().unwrap();
        let handle = runtime.block_on(async {
            let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let mut listener = Listener::open(&identity, here, plan.workers()).unwrap();
            for worker in 0..plan.workers() {
                tokio::spawn(work(
                    worker,
                    listener.address(),
                    identity.ticket().clone(),
                    reach,
                    nccl.clone(),
                ));
            }
            while listener.missing() > 0 {
                let event = listener.next().await;
                assert!(matches!(event, ListenerEvent::Joined { .. }), "{event:?}");
            }
            let buckets = BucketBytes { first: 1 << 10, other: 8 << 10 };
            let setup = Setup { buckets, seed, ..Setup::new(plan) };
            runtime::start(listener, setup, |_notice| ()).unwrap()
        });
        SocketCluster { handle, runtime, _keys: keys }
    }
}

async fn work(
    worker: usize,
    boss: SocketAddr,
    ticket: link::Ticket,
    reach: Connectivity,
    nccl: Option<Arc<Nccl>>,
) {
    let endpoint = link::worker_endpoint(&ticket, &[boss]).unwrap();
    let info = WorkerInfo { direct: reach != Connectivity::Relayed, ..WorkerInfo::default() };
    let membership = link::join(&endpoint, &[boss], &ticket, info).await.unwrap();
    let membership = match reach {
        Connectivity::SharedMemory => membership,
        Connectivity::Quic | Connectivity::Relayed => membership.transport(Transport::Quic),
    };
    let compute = ComputeThread::start_interruptible(move |called_off| {
        tensor::threads::set_count(1);
        StageCompute::new(device_of(worker)).with_nccl(nccl, called_off)
    });
    runtime::serve(
        membership,
        &endpoint,
        &ticket,
        compute.unwrap(),
        None,
        runtime::SnapshotStore::default(),
        &runtime::LeaveSignal::default(),
    )
    .await
    .unwrap();
}

impl TestCluster for SocketCluster {
    fn answer(&mut self, request: Request) -> Result<Answer, Failure> {
        self.runtime.block_on(self.handle.call(request))
    }

    fn fetch(&mut self, request: SendState) -> Result<Vec<(String, Payload)>, Failure> {
        let mut stream = self.handle.fetch(request);
        self.runtime.block_on(async {
            let heads = stream.heads().await?;
            let mut state = Vec::new();
            while let Some(StatePart { worker, name, payload }) = stream.next().await? {
                let head = StateHead { worker, name: name.clone(), meta: payload.meta.clone() };
                assert!(heads.contains(&head), "{head:?} was not announced");
                state.push((name, payload));
            }
            Ok(state)
        })
    }

    fn slots(&self) -> &Slots {
        &self.handle.slots
    }
}

impl Drop for SocketCluster {
    fn drop(&mut self) {
        self.runtime.block_on(self.handle.stop());
    }
}
