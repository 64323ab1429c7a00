//! Puts messages and tensors on the network.

use super::World;
use crate::math::Fake;
use crate::network::Packet;
use layerspec::DType;
use pipeline::effect::{Destination, Peer};
use pipeline::frame::{encode, Envelope, FrameMessage, Route, TensorEnvelope};
use pipeline::message::{NoMessage, TensorHead};
use pipeline::TensorMeta;

impl World {
    fn note_weight(&mut self, from: Peer, peer: Peer, route: Option<Route>, head: &TensorHead) {
        let to = match (peer, route) {
            // The boss passes on a worker's frame.
            (Peer::Worker(_), Some(_)) => return,
            (Peer::Boss, Some(route)) => route.to,
            (Peer::Worker(to), None) if from != peer => to,
            _ => return,
        };
        if let TensorHead::Weight { name, stage, .. } = head {
            self.weights.entry(name.clone()).or_default().push((*stage, from, to));
        }
    }

    pub(super) fn tell<M: FrameMessage>(&mut self, from: Peer, to: Peer, message: M) {
        let head = encode(&Envelope::Message(message)).expect("a frame within bounds");
        self.network.send(Packet::new(from, to, head, Vec::new()), false);
    }

    pub(super) fn send(&mut self, from: Peer, to: Vec<Destination>, tensors: Vec<Fake>) {
        for Destination { peer, route, head } in to {
            assert!(
                from != Peer::Boss
                    || !matches!(peer, Peer::Worker(worker) if self.lost.contains(&worker)),
                "the boss sends to {peer}, which is lost"
            );
            self.note_weight(from, peer, route, &head);
            self.note_sent(from, peer, &head);
            let meta = TensorMeta { dtype: DType::Int64, shape: vec![1] };
            let tensor_metas = vec![meta; tensors.len()];
            let envelope = TensorEnvelope { route, head, tensors: tensor_metas };
            let envelope = Envelope::<NoMessage>::Tensors(envelope);
            let head = encode(&envelope).expect("a frame within bounds");
            self.network.send(Packet::new(from, peer, head, tensors.clone()), true);
        }
    }
}
