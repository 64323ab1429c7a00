//! UDP sockets with large buffers.

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Kernel buffers asked for, in each direction: what arrives while this process is busy elsewhere waits
/// there, and what finds no room is lost and sent again.
const BUFFER: usize = 4 << 20;
/// Freed memory of up to twice this is kept for the next packets.
const RETAINED_BYTES: usize = 16 << 20;

/// The system grants smaller socket buffers than 4 MiB; their sizes in bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SmallBuffers {
    receive: usize,
    send: usize,
}

impl fmt::Display for SmallBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = self.receive.min(self.send) >> 10;
        write!(f, "the network may be slower than it could be: the system grants socket buffers of {least} KiB")?;
        if cfg!(target_os = "linux") {
            write!(f, "; sudo sysctl -w net.core.rmem_max={BUFFER} net.core.wmem_max={BUFFER} allows more")?;
        }
        Ok(())
    }
}

/// Packets are as large as what the C library (glibc) gives back to the system when the last of it is freed,
/// to take it again for the next packet, page by page: a fifth of both ends' processor time on loopback. It stops
/// doing so for sizes up to that of the largest piece of memory that was ever freed. A worker soon frees large
/// tensors; this does it from the start, without touching the memory.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(RETAINED_BYTES)));
}

/// Binds; a system that grants smaller buffers still works.
pub(crate) fn bind(address: SocketAddr) -> io::Result<(Arc<dyn AsyncUdpSocket>, Option<SmallBuffers>)> {
    keep_freed_memory();
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, None)?;
    socket.set_recv_buffer_size(BUFFER).ok();
    socket.set_send_buffer_size(BUFFER).ok();
    // Linux takes as much again for its own bookkeeping, and says the sum.
    let share = if cfg!(target_os = "linux") { 2 } else { 1 };
    let granted =
        SmallBuffers { receive: socket.recv_buffer_size()? / share, send: socket.send_buffer_size()? / share };
    if address.is_ipv6() {
        socket.set_only_v6(false).ok();
    }
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    let small = (granted.receive.min(granted.send) < BUFFER).then_some(granted);
    Ok((Arc::new(UnmergedSocket(TokioRuntime.wrap_udp_socket(socket.into())?)), small))
}

/// Quinn takes memory for 32 messages of as many packets as the kernel may merge into one, 64, each of
/// the largest size: 128 MiB. But a merged message is never larger than the largest packet.
#[derive(Debug)]
struct UnmergedSocket(Arc<dyn AsyncUdpSocket>);

impl AsyncUdpSocket for UnmergedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        self.0.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        1
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_grants_is_said_with_what_allows_more() {
        let text = SmallBuffers { receive: 212_992, send: 8 << 20 }.to_string();
        assert!(text.contains("208 KiB"), "{text}");
        assert!(text.contains("net.core.rmem_max=4194304") || !cfg!(target_os = "linux"), "{text}");
    }
}
