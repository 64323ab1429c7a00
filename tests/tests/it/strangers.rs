//! Tests that callers without a ticket, or that violate the protocol, harm only themselves.

use link::testing::{dial, join_control, listen};
use link::{Identity, Listener, ListenerEvent, WorkerInfo};
use pipeline::boss::{Instruction, Setup};
use pipeline::frame::{encode, Envelope, TensorEnvelope};
use pipeline::message::{TensorHead, ToBoss, ToWorker, PROTOCOL_VERSION};
use pipeline::{Cuts, Placement, Plan, TensorMeta};
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use runtime::{ComputeThread, Handle};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tests::programs::{TestFolder, TIMEOUT};
use tests::Case;
use worker::StageCompute;

const ANY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn local(port: &str) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port.parse().unwrap()).into()
}

/// Makes the greeting of a caller of another version. Only its first twelve bytes mean anything
/// here.
fn words_of_version(version: u32) -> Vec<u8> {
    [b"BOSSMAN\n".as_slice(), &version.to_le_bytes(), &[0xff; 40]].concat()
}

/// JOIN-4.
#[tokio::test]
async fn a_worker_of_another_version_is_told_both_versions() {
    let place = TestFolder::new();
    let (mut boss, at) = place.boss(&place.endless_run(), 1, &[]).await;
    let ticket = at.ticket.parse().unwrap();
    let endpoint = link::worker_endpoint(&ticket, &[local(&at.port)]).unwrap();
    let quic = dial(&endpoint, local(&at.port), &ticket).await.unwrap();
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    send.write_all(&words_of_version(99)).await.unwrap();
    let reply = recv.read_to_end(1 << 16).await.unwrap();
    assert_eq!(reply[..12], words_of_version(PROTOCOL_VERSION)[..12]);
    quic.close(0u32.into(), b"");
    let line = format!(
        "turned away 127.0.0.1: protocol versions differ: this program has {PROTOCOL_VERSION}, \
         the other end 99"
    );
    boss.line(&line).await;
}

/// JOIN-4.
#[tokio::test]
async fn a_boss_of_another_version_is_named_with_both_versions() {
    let place = TestFolder::new();
    let identity = Identity::load_or_create_in(&place.file("config")).unwrap();
    let endpoint = listen(&identity, ANY.into()).unwrap();
    let worker = place.worker(&endpoint.local_addr().unwrap().port().to_string(), &[]);
    let quic = endpoint.accept().await.unwrap().await.unwrap();
    let (mut send, _recv) = quic.accept_bi().await.unwrap();
    send.write_all(&words_of_version(99)).await.unwrap();
    let line = worker.end().await.error_line();
    let expected = format!(
        "worker: protocol versions differ: this program has {PROTOCOL_VERSION}, the other end \
         99; install the same"
    );
    assert!(line.starts_with(&expected), "{line}");
}

/// JOIN-2.
#[tokio::test]
async fn strangers_do_not_disturb_a_run() {
    let place = TestFolder::new();
    let case = Case::branchy();
    let run = place.run_file(&case, 300, "microbatches: 4");
    let (mut boss, at) = place.boss(&run, 2, &[]).await;
    garbage(&at.port);
    let first = place.worker(&at.port, &[]);
    let reason = without_a_key(&at.port).await;
    assert!(reason.contains("certificate"), "{reason}");
    boss.line("turned away 127.0.0.1: it has no valid ticket, or does not speak BossMan").await;
    let second = place.worker(&at.port, &[]);
    boss.line("step 1/300").await;
    garbage(&at.port);
    without_a_key(&at.port).await;
    boss.end().await.expect_success();
    first.end().await.expect_success();
    second.end().await.expect_success();
}

/// Sends packets of every kind of nonsense.
fn garbage(port: &str) {
    let socket = std::net::UdpSocket::bind(ANY).unwrap();
    let mut byte = 1u8;
    for length in (0..1400).step_by(7) {
        let packet: Vec<u8> = (0..length)
            .map(|_| {
                byte = byte.wrapping_mul(167).wrapping_add(13);
                byte
            })
            .collect();
        socket.send_to(&packet, local(port)).unwrap();
    }
}

/// Dials without the ticket, and returns why that fails.
async fn without_a_key(port: &str) -> String {
    tests::strangers::dial_without_ticket(&Endpoint::client(ANY.into()).unwrap(), local(port)).await
}

/// A boss with one honest worker, and a second one that holds the ticket and will misbehave.
struct Rogue {
    handle: Handle,
    quic: Connection,
    control: (SendStream, RecvStream),
    honest: tokio::task::JoinHandle<Result<runtime::End, link::LinkError>>,
    _keys: tempfile::TempDir,
    _endpoint: Endpoint,
}

fn info() -> WorkerInfo {
    WorkerInfo { direct: false, ..WorkerInfo::default() }
}

async fn lobby_with_rogue(
    places: usize,
) -> (Listener, Identity, Connection, (SendStream, RecvStream), Endpoint, tempfile::TempDir) {
    let keys = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create_in(keys.path()).unwrap();
    let mut listener = Listener::open(&identity, ANY.into(), places).unwrap();
    let endpoint = link::worker_endpoint(identity.ticket(), &[listener.address()]).unwrap();
    let quic = dial(&endpoint, listener.address(), identity.ticket()).await.unwrap();
    let (control, event) = tokio::join!(join_control(&quic, info()), listener.next());
    assert!(matches!(event, ListenerEvent::Joined { .. }), "{event:?}");
    (listener, identity, quic, control.unwrap(), endpoint, keys)
}

impl Rogue {
    async fn in_a_run() -> Self {
        let (mut listener, identity, quic, control, endpoint, keys) = lobby_with_rogue(2).await;
        let (ticket, address) = (identity.ticket().clone(), listener.address());
        let honest = tokio::spawn(async move {
            let endpoint = link::worker_endpoint(&ticket, &[address]).unwrap();
            let membership = link::join(&endpoint, &[address], &ticket, info()).await.unwrap();
            let compute = ComputeThread::start(|| StageCompute::new(tch::Device::Cpu)).unwrap();
            runtime::serve(
                membership,
                &endpoint,
                &ticket,
                compute,
                None,
                runtime::SnapshotStore::default(),
                &runtime::LeaveSignal::default(),
            )
            .await
        });
        assert!(matches!(listener.next().await, ListenerEvent::Joined { .. }));
        let plan =
            Plan::new(Case::branchy().model.graph(), &Cuts::Auto, 2, Placement::Plain).unwrap();
        let handle = runtime::start(listener, Setup::new(plan), |_notice| ()).unwrap();
        Rogue { handle, quic, control, honest, _keys: keys, _endpoint: endpoint }
    }

    /// Returns what the boss says of the second worker. Its connection is closed, and the honest
    /// worker still works.
    async fn found_out(self) -> String {
        let failure = within(self.handle.call(Instruction::Distribute)).await.unwrap_err();
        assert_eq!(failure.worker, Some(pipeline::ids::WorkerId(0)), "{failure}");
        within(self.quic.closed()).await;
        assert!(!self.honest.is_finished());
        within(self.handle.stop()).await;
        within(self.honest).await.unwrap().unwrap();
        failure.to_string()
    }

    /// Sends these bytes on their own stream, as a frame with tensors travels.
    async fn stream(&self, bytes: &[u8]) {
        let mut stream = self.quic.open_uni().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.finish().unwrap();
    }
}

async fn within<T>(future: impl std::future::Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap()
}

fn state_frame(tensors: Vec<TensorMeta>) -> Envelope<ToBoss> {
    let head = TensorHead::State { id: 1, name: "stem.weight".into() };
    Envelope::Tensors(TensorEnvelope { route: None, head, tensors })
}

/// FRAME-1, FRAME-8, JOIN-6.
#[tokio::test]
async fn a_frame_with_too_long_a_head_costs_its_sender_the_place_and_nobody_else() {
    let (mut listener, _identity, quic, mut control, _endpoint, _keys) = lobby_with_rogue(1).await;
    control.0.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
    let event = within(listener.next()).await;
    let ListenerEvent::Left { reason, .. } = event else { panic!("{event:?}") };
    assert_eq!(
        reason,
        "it broke the protocol: a frame head of 4294967295 bytes; at most 16777216 are allowed"
    );
    within(quic.closed()).await;
    assert_eq!(listener.missing(), 1);
}

/// FRAME-8.
#[tokio::test]
async fn a_head_that_is_no_head_ends_its_sender() {
    let rogue = Rogue::in_a_run().await;
    rogue.stream(&[4, 0, 0, 0, 0xc1, 0xc1, 0xc1, 0xc1]).await;
    let failure = rogue.found_out().await;
    assert!(
        failure.contains("it broke the protocol: a frame head that cannot be read"),
        "{failure}"
    );
}

/// FRAME-1, FRAME-8.
#[tokio::test]
async fn a_tensor_larger_than_any_is_refused_before_memory_is_taken() {
    let rogue = Rogue::in_a_run().await;
    let small = TensorMeta { dtype: layerspec::DType::Float32, shape: vec![1, 1] };
    // The same head with sizes of a petabyte: 1 becomes 2^24, which MessagePack writes as ce 01 00
    // 00 00.
    let head = encode(&state_frame(vec![small])).unwrap()[4..].to_vec();
    assert!(head.ends_with(&[1, 1]), "{head:?}");
    let large = [&head[..head.len() - 2], &[0xce, 1, 0, 0, 0], &[0xce, 1, 0, 0, 0]].concat();
    rogue.stream(&[&(large.len() as u32).to_le_bytes(), large.as_slice()].concat()).await;
    let failure = rogue.found_out().await;
    assert!(failure.contains("it broke the protocol: a frame with"), "{failure}");
    assert!(failure.contains("at most 17179869184 bytes are allowed"), "{failure}");
}

/// FRAME-7, FRAME-8.
#[tokio::test]
async fn a_tensor_that_ends_early_ends_its_sender() {
    let rogue = Rogue::in_a_run().await;
    let meta = TensorMeta { dtype: layerspec::DType::Float32, shape: vec![1000] };
    rogue.stream(&[encode(&state_frame(vec![meta])).unwrap(), vec![0; 100]].concat()).await;
    let failure = rogue.found_out().await;
    assert!(failure.contains("it broke the protocol: "), "{failure}");
}

/// FRAME-4, FRAME-8.
#[tokio::test]
async fn a_worker_that_gives_orders_is_sent_away() {
    let mut rogue = Rogue::in_a_run().await;
    let stop = encode(&Envelope::Message(ToWorker::Stop)).unwrap();
    rogue.control.0.write_all(&stop).await.unwrap();
    let failure = rogue.found_out().await;
    assert!(
        failure.contains("it broke the protocol: a frame head that cannot be read"),
        "{failure}"
    );
}

/// JOIN-5.
#[tokio::test]
async fn a_caller_that_says_nothing_holds_nobody_up() {
    let (mut listener, identity, _quic, _control, endpoint, _keys) = lobby_with_rogue(2).await;
    let silent = dial(&endpoint, listener.address(), identity.ticket()).await.unwrap();
    let other = dial(&endpoint, listener.address(), identity.ticket()).await.unwrap();
    let (control, event) = tokio::join!(join_control(&other, info()), within(listener.next()));
    assert!(matches!(event, ListenerEvent::Joined { .. }), "{event:?}");
    drop(control);
    let turned_away = tokio::time::timeout(Duration::from_secs(10), listener.next()).await.unwrap();
    let ListenerEvent::Rejected { reason, .. } = turned_away else { panic!("{turned_away:?}") };
    assert_eq!(reason, "it sent no handshake within 5 seconds");
    drop(silent);
}

/// JOIN-5.
#[tokio::test]
async fn a_handshake_that_claims_to_be_long_is_refused() {
    let (mut listener, identity, _quic, _control, endpoint, _keys) = lobby_with_rogue(2).await;
    let quic = dial(&endpoint, listener.address(), identity.ticket()).await.unwrap();
    let (mut send, mut recv) = quic.open_bi().await.unwrap();
    let start = &words_of_version(PROTOCOL_VERSION)[..12];
    send.write_all(&[start, &u32::MAX.to_le_bytes()].concat()).await.unwrap();
    recv.read_to_end(1 << 16).await.unwrap();
    quic.close(0u32.into(), b"");
    let event = within(listener.next()).await;
    let ListenerEvent::Rejected { reason, .. } = event else { panic!("{event:?}") };
    assert!(reason.contains("a handshake of 4294967295 bytes; at most 65536"), "{reason}");
    assert_eq!(listener.missing(), 1);
}

/// JOIN-1, JOIN-8.
#[cfg(unix)]
#[test]
fn keys_are_readable_by_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("bossman");
    let first = Identity::load_or_create_in(&folder).unwrap();
    let again = Identity::load_or_create_in(&folder).unwrap();
    assert_eq!(first.ticket().to_string(), again.ticket().to_string());
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files.iter().all(|file| mode(file) == 0o600), "{files:?}");
}
