//! What a stage session says when, where the simulator does not reach.

#![allow(clippy::expect_used, clippy::panic, reason = "everything here is part of a test")]

use pipeline::effect::{Effect, Frame, Micros, Peer};
use pipeline::ids::Ticket;
use pipeline::message::{Command, Head, LinkReport};
use pipeline::stage::StageSession;
use pipeline::task::Outcome;

const NOW: Micros = Micros(0);

/// What the session says to the boss now, and what it has the compute thread do.
fn drain(session: &mut StageSession) -> (Vec<Head>, Vec<Ticket>) {
    let (mut said, mut tickets) = (Vec::new(), Vec::new());
    while let Some(effect) = session.poll_effect() {
        match effect {
            Effect::Send { to, .. } => said.extend(to.into_iter().map(|to| to.head)),
            Effect::Compute { ticket, .. } => tickets.push(ticket),
            other => panic!("{other:?}"),
        }
    }
    (said, tickets)
}

/// A session whose compute thread has measured while the driver still measures the link to the boss.
fn measuring() -> StageSession {
    let mut session = StageSession::new();
    session.on_measuring(Peer::Boss);
    let head = Head::Command { id: 1, body: Command::Measure(Vec::new()) };
    session.on_frame(NOW, Peer::Boss, Frame { route: None, head, slots: Vec::new() });
    let (said, tickets) = drain(&mut session);
    assert_eq!((said.len(), tickets.len()), (0, 1));
    session.on_done(NOW, tickets[0], Ok(Outcome::Measured { times: Vec::new() }), (NOW, NOW));
    assert_eq!(drain(&mut session).0, [], "the link is not known yet");
    session
}

#[test]
fn a_measurement_waits_for_the_links() {
    let mut session = measuring();
    session.on_link_report(Peer::Boss, Some(LinkReport::default()));
    let (said, _) = drain(&mut session);
    let expected = |head: &Head, place| match place {
        0 => matches!(head, Head::LinkReport { peer: None, .. }),
        1 => matches!(head, Head::Measured { id: 1, .. }),
        _ => matches!(head, Head::Done { id: 1, .. }),
    };
    assert!(said.len() == 3 && said.iter().zip(0..).all(|(head, place)| expected(head, place)), "{said:?}");
}

#[test]
fn a_link_that_cannot_be_measured_does_not_hold_it_up() {
    let mut session = measuring();
    session.on_link_report(Peer::Boss, None);
    let (said, _) = drain(&mut session);
    assert!(matches!(said.as_slice(), [Head::Measured { .. }, Head::Done { .. }]), "{said:?}");
}
