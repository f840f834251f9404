//! GantryMQ's loops over many records, each a function of bytes; what is to be done is said in Python
//! (`gantrymq/kernels`), which has a twin of every function here.

pub mod batch;
pub mod binary;
mod bytes;
pub mod columns;
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
pub mod sends;
pub mod slices;
pub mod units;
