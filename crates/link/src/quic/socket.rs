//! UDP sockets with large buffers.

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tracing::debug;

/// The requested size of the kernel's buffers in each direction, in bytes. Packets wait there while
/// this process is busy. Packets that find no room are lost and sent again.
const BUFFER: usize = 4 << 20;
/// The C library then keeps up to twice this many freed bytes for the next packets.
const RETAINED_BYTES: usize = 16 << 20;

/// The sizes of socket buffers in bytes, if the system grants less than 4 MiB.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SmallBuffers {
    receive: usize,
    send: usize,
}

impl fmt::Display for SmallBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = self.receive.min(self.send) >> 10;
        write!(
            f,
            "the network may be slower than it could be: the system grants socket buffers of \
             {least} KiB"
        )?;
        if cfg!(target_os = "linux") {
            write!(
                f,
                "; sudo sysctl -w net.core.rmem_max={BUFFER} net.core.wmem_max={BUFFER} allows \
                 more"
            )?;
        }
        Ok(())
    }
}

/// Makes the C library keep freed memory for the next packets.
///
/// glibc returns memory of the size of a packet to the system when it is freed, and requests it
/// again page by page for the next packet. On loopback that cost a fifth of the processor time of
/// both ends. glibc stops this for sizes up to the largest piece of memory that was ever freed.
/// This function frees a large piece at the start, without touching its pages. Our own programs set
/// the size themselves (`tensor::memory`), so it is for other programs with this crate.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(RETAINED_BYTES)));
}

/// Binds a socket. `[::]` means IPv6 and IPv4, or IPv4 alone on a system without IPv6. A system
/// that grants smaller buffers still works.
pub(crate) fn bind(
    address: SocketAddr,
) -> io::Result<(Arc<dyn AsyncUdpSocket>, Option<SmallBuffers>)> {
    keep_freed_memory();
    match bind_exactly(address) {
        Err(e) if address.ip() == Ipv6Addr::UNSPECIFIED && e.kind() != io::ErrorKind::AddrInUse => {
            debug!(error = %e, "no socket for IPv6 and IPv4; taking IPv4");
            bind_exactly(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
        }
        bound => bound,
    }
}

fn bind_exactly(
    address: SocketAddr,
) -> io::Result<(Arc<dyn AsyncUdpSocket>, Option<SmallBuffers>)> {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::DGRAM, None)?;
    socket.set_recv_buffer_size(BUFFER).ok();
    socket.set_send_buffer_size(BUFFER).ok();
    // Linux adds the same size for its own bookkeeping, and reports the sum.
    let reported_per_byte = if cfg!(target_os = "linux") { 2 } else { 1 };
    let granted = SmallBuffers {
        receive: socket.recv_buffer_size()? / reported_per_byte,
        send: socket.send_buffer_size()? / reported_per_byte,
    };
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.set_nonblocking(true)?;
    let small = (granted.receive.min(granted.send) < BUFFER).then_some(granted);
    Ok((Arc::new(UnmergedSocket(TokioRuntime.wrap_udp_socket(socket.into())?)), small))
}

/// A socket that claims to receive unmerged packets. Otherwise quinn allocates memory for 32
/// messages of 64 merged packets of the largest size: 128 MiB. But a merged message is never larger
/// than the largest packet.
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
    fn small_buffers_are_reported_with_the_remedy() {
        let text = SmallBuffers { receive: 212_992, send: 8 << 20 }.to_string();
        assert!(text.contains("208 KiB"), "{text}");
        assert!(text.contains("net.core.rmem_max=4194304") || !cfg!(target_os = "linux"), "{text}");
    }
}
