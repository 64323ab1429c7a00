//! A boss and its workers in one process, over real QUIC on the loopback interface.

use crate::Fleet;
use link::{ComputeThread, Handle, Identity, Lobby, LobbyEvent, Slots, WorkerInfo};
use pipeline::boss::Request;
use pipeline::effect::Answer;
use pipeline::message::Failure;
use pipeline::Plan;
use std::net::{Ipv4Addr, SocketAddr};
use tch::Device;
use tokio::runtime::Runtime;
use worker::StageCompute;

/// Workers behind sockets.
pub struct Sockets {
    handle: Handle,
    runtime: Runtime,
    _keys: tempfile::TempDir,
}

impl Sockets {
    /// Workers for a plan. Where `direct` is false the boss relays between them.
    pub fn new(plan: Plan, seed: u64, direct: bool) -> Self {
        let keys = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create_in(keys.path()).unwrap();
        let runtime = Runtime::new().unwrap();
        let handle = runtime.block_on(async {
            let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let mut lobby = Lobby::open(&identity, here, plan.workers()).unwrap();
            for _ in 0..plan.workers() {
                tokio::spawn(work(lobby.address(), identity.ticket().clone(), direct));
            }
            while lobby.missing() > 0 {
                let event = lobby.next().await;
                assert!(matches!(event, LobbyEvent::Joined { .. }), "{event:?}");
            }
            lobby.start(plan, seed, |_notice| ()).unwrap()
        });
        Sockets { handle, runtime, _keys: keys }
    }
}

async fn work(boss: SocketAddr, ticket: link::Ticket, direct: bool) {
    let endpoint = link::worker_endpoint(&ticket, boss).unwrap();
    let info = WorkerInfo {
        device: "cpu".into(),
        threads: 1,
        memory_bytes: None,
        version: "test".into(),
        direct,
        host: "here".into(),
        process: 0,
    };
    let membership = link::join(&endpoint, boss, &ticket, info).await.unwrap();
    let compute = ComputeThread::start(|| {
        tensor::threads::set_count(1);
        StageCompute::new(Device::Cpu)
    });
    link::serve(membership, &endpoint, &ticket, compute.unwrap()).await.unwrap();
}

impl Fleet for Sockets {
    fn call(&mut self, request: Request) -> Result<Answer, Failure> {
        self.runtime.block_on(self.handle.call(request))
    }

    fn slots(&self) -> &Slots {
        &self.handle.slots
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.runtime.block_on(self.handle.stop());
    }
}
