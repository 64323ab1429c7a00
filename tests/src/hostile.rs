//! A peer that holds the ticket, joins as a worker does, and violates the protocol.

use link::testing::{dial, dial_worker, join_raw, next_message};
use link::{LinkError, Ticket, WorkerInfo};
use pipeline::frame::{encode, Envelope, FrameMessage, Route, TensorEnvelope};
use pipeline::ids::WorkerId;
use pipeline::message::{Command, TensorHead, ToBoss, ToWorker};
use pipeline::TensorMeta;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use std::net::SocketAddr;

/// The promised bytes of a large tensor, of which hardly any are sent.
const PROMISED: u64 = 1 << 30;

/// A malicious worker with a place in a run.
pub struct MaliciousWorker {
    /// Its number.
    pub worker: WorkerId,
    run: u64,
    ticket: Ticket,
    endpoint: Endpoint,
    /// The connection to the boss.
    pub boss: RawConnection,
}

/// A connection of a malicious worker.
pub struct RawConnection {
    /// The QUIC connection.
    pub quic: Connection,
    /// Its ordered stream.
    pub control: (SendStream, RecvStream),
}

impl MaliciousWorker {
    /// Joins the boss at this address. The boss knows a caller that comes again with the same
    /// `process`.
    pub async fn join(at: SocketAddr, ticket: &Ticket, process: u32) -> Self {
        let endpoint = link::worker_endpoint(ticket, &[at]).unwrap();
        let quic = dial(&endpoint, at, ticket).await.unwrap();
        let info = WorkerInfo { process, ..WorkerInfo::default() };
        let (worker, run, control) = join_raw(&quic, info).await.unwrap();
        MaliciousWorker {
            worker,
            run,
            ticket: ticket.clone(),
            endpoint,
            boss: RawConnection { quic, control },
        }
    }

    /// Waits until this worker is to take part, and returns the addresses of the other workers.
    pub async fn peer_addresses(&mut self) -> Vec<(WorkerId, SocketAddr)> {
        loop {
            let message = next_message(&mut self.boss.control.1).await.unwrap();
            if let ToWorker::Command { body: Command::Assign(assignment), .. } = message {
                return assignment
                    .peers
                    .iter()
                    .filter_map(|peer| Some((peer.worker, peer.address?)))
                    .collect();
            }
        }
    }

    /// Dials a worker of its run under the number `me`.
    pub async fn call(&self, at: SocketAddr, me: WorkerId) -> Result<RawConnection, LinkError> {
        self.call_of_run(at, me, self.run).await
    }

    /// Same as [`Self::call`], but under this run.
    pub async fn call_of_run(
        &self,
        at: SocketAddr,
        me: WorkerId,
        run: u64,
    ) -> Result<RawConnection, LinkError> {
        let (quic, control) = dial_worker(&self.endpoint, at, &self.ticket, me, run).await?;
        Ok(RawConnection { quic, control })
    }
}

impl RawConnection {
    /// Sends bytes on the ordered stream. Returns false if it is closed.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.control.0.write_all(bytes).await.is_ok()
    }

    /// Opens `streams` streams and keeps them open. Each carries the head of a huge tensor and
    /// hardly any of its bytes.
    pub async fn open_unfinished_streams(
        &self,
        head: &TensorHead,
        streams: usize,
    ) -> Vec<SendStream> {
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

    /// Sends a frame with this tensor on its own stream. Returns false if the connection is closed.
    pub async fn send(&self, route: Option<Route>, head: TensorHead, tensor: &[u8]) -> bool {
        let meta = TensorMeta { dtype: layerspec::DType::UInt8, shape: vec![tensor.len() as u64] };
        let Ok(mut stream) = self.quic.open_uni().await else { return false };
        stream.write_all(&[&frame(route, head, vec![meta]), tensor].concat()).await.is_ok()
            && stream.finish().is_ok()
    }

    /// Waits until the other end closes the connection, and returns its reason.
    pub async fn closed(&self) -> String {
        match self.quic.closed().await {
            quinn::ConnectionError::ApplicationClosed(close) => {
                String::from_utf8_lossy(&close.reason).into_owned()
            }
            other => other.to_string(),
        }
    }
}

/// Returns the bytes of a frame up to its tensors.
pub fn frame(route: Option<Route>, head: TensorHead, tensors: Vec<TensorMeta>) -> Vec<u8> {
    let envelope = TensorEnvelope { route, head, tensors };
    encode(&Envelope::<ToBoss>::Tensors(envelope)).unwrap()
}

/// Returns the bytes of a frame with a message.
pub fn message<M: FrameMessage>(message: M) -> Vec<u8> {
    encode(&Envelope::Message(message)).unwrap()
}

/// Returns the peak memory of a process so far, in MiB.
pub fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() >> 10
}
