//! The program as its users meet it: configurations in, folders of records out.

mod bad_input;
mod bench;
mod compare;
mod fingerprint;
mod judged;
mod killed;
mod run;
mod schema;
mod support;
mod sweep;
mod trace;
