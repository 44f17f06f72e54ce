//! One adapter a file, each the peer's fastest documented use under the order promise of a topic.

pub mod array_queue;
pub mod async_broadcast;
pub mod crossbeam_channel;
pub mod disruptor;
pub mod fanout;
pub mod naive;
pub mod photon_ring;
pub mod ring_channel;
pub mod rtrb;
pub mod tokio;

pub use self::{
    array_queue::ArrayQueue, async_broadcast::AsyncBroadcast, crossbeam_channel::CrossbeamChannel,
    disruptor::Disruptor, fanout::Fanout, naive::Naive, photon_ring::PhotonRing, ring_channel::RingChannel,
    rtrb::Rtrb, tokio::Tokio,
};
