//! At-least-once: what settles a message, and what happens to it until then.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod acking;
#[path = "../support/acks.rs"]
mod acks;
mod dead_letters;
mod ends;
mod limits;
mod model;
mod receivers;
mod redelivery;
mod storm;
#[path = "../support/mod.rs"]
mod support;
