//! A caller that holds the ticket, joins as a worker does, and keeps to nothing.

use link::testing::{dial, dial_worker, join_raw, next_frame};
use link::{LinkError, Ticket, WorkerInfo};
use pipeline::frame::{encode, Envelope, Route};
use pipeline::ids::WorkerId;
use pipeline::message::{Command, Head};
use pipeline::TensorMeta;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use std::net::SocketAddr;

/// Bytes of a large tensor, of which hardly any are sent.
const PROMISED: u64 = 1 << 30;

/// One with a place in a run.
pub struct MaliciousWorker {
    /// Its number.
    pub worker: WorkerId,
    run: u64,
    ticket: Ticket,
    endpoint: Endpoint,
    /// To the boss.
    pub boss: RawConnection,
}

/// A connection of it.
pub struct RawConnection {
    /// The connection.
    pub quic: Connection,
    /// Its ordered stream.
    pub control: (SendStream, RecvStream),
}

impl MaliciousWorker {
    /// Joins the boss at this address; who comes again with the same `process` is known there.
    pub async fn join(at: SocketAddr, ticket: &Ticket, process: u32) -> Self {
        let endpoint = link::worker_endpoint(ticket, at).unwrap();
        let quic = dial(&endpoint, at, ticket).await.unwrap();
        let info = WorkerInfo { process, ..WorkerInfo::default() };
        let (worker, run, control) = join_raw(&quic, info).await.unwrap();
        MaliciousWorker { worker, run, ticket: ticket.clone(), endpoint, boss: RawConnection { quic, control } }
    }

    /// The other workers, as it is told of them once it is to take part.
    pub async fn peer_addresses(&mut self) -> Vec<(WorkerId, SocketAddr)> {
        loop {
            let Envelope { head, .. } = next_frame(&mut self.boss.control.1).await.unwrap();
            if let Head::Command { body: Command::Assign(assignment), .. } = head {
                return assignment.peers.iter().filter_map(|peer| Some((peer.worker, peer.address?))).collect();
            }
        }
    }

    /// Dials a worker as this one of its run.
    pub async fn call(&self, at: SocketAddr, me: WorkerId) -> Result<RawConnection, LinkError> {
        self.call_of_run(at, me, self.run).await
    }

    /// The same, as one of this run.
    pub async fn call_of_run(&self, at: SocketAddr, me: WorkerId, run: u64) -> Result<RawConnection, LinkError> {
        let (quic, control) = dial_worker(&self.endpoint, at, &self.ticket, me, run).await?;
        Ok(RawConnection { quic, control })
    }
}

impl RawConnection {
    /// Says something on the ordered stream; false where it is closed.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.control.0.write_all(bytes).await.is_ok()
    }

    /// Begins as many streams as may be at a time, each with the head of a huge tensor and hardly more; keeps them open.
    pub async fn open_unfinished_streams(&self, head: &Head, streams: usize) -> Vec<SendStream> {
        let meta = TensorMeta { dtype: layerspec::DType::UInt8, shape: vec![PROMISED] };
        let bytes = [frame(None, head.clone(), vec![meta]), vec![1; 100]].concat();
        let mut open = Vec::new();
        for _ in 0..streams {
            let mut stream = self.quic.open_uni().await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            open.push(stream);
        }
        open
    }

    /// Sends a frame with this tensor on a stream of its own; false where the connection is closed.
    pub async fn send(&self, route: Option<Route>, head: Head, tensor: &[u8]) -> bool {
        let meta = TensorMeta { dtype: layerspec::DType::UInt8, shape: vec![tensor.len() as u64] };
        let Ok(mut stream) = self.quic.open_uni().await else { return false };
        stream.write_all(&[&frame(route, head, vec![meta]), tensor].concat()).await.is_ok() && stream.finish().is_ok()
    }

    /// Why the other end closed it.
    pub async fn closed(&self) -> String {
        match self.quic.closed().await {
            quinn::ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
            other => other.to_string(),
        }
    }
}

/// The bytes of a frame up to its tensors.
pub fn frame(route: Option<Route>, head: Head, tensors: Vec<TensorMeta>) -> Vec<u8> {
    encode(&Envelope { route, head, tensors }).unwrap()
}

/// The most memory that a process has had so far, in MiB.
pub fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() >> 10
}
