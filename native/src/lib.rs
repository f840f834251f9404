//! GantryMQ's loops over many records. Each function takes bytes, and Python decides what to do. `gantrymq/kernels` has
//! an equivalent of every function in Python.

pub mod batch;
pub mod binary;
mod bytes;
pub mod columns;
pub mod header_cache;
pub mod index_file;
pub mod inflate;
pub mod keys;
pub mod plain_batch;
pub mod properties;
pub mod pulled;
#[cfg(feature = "python")]
mod python;
pub mod record;
pub mod rows;
pub mod scan;
pub mod send_frame;
pub mod send_responses;
pub mod sends;
pub mod slices;
pub mod units;
