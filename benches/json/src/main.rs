//! Compares ways to read an admission review: the guard's own reader and JSON libraries.
//!
//! `scripts/bench json` runs this program. Each line has the time of one reader for one review, and its ratio to the
//! reader of the guard. A round measures all readers one after the other; the figures are medians of the rounds.

// The program fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod readers;
mod reviews;

use std::{hint::black_box, time::Instant};

use readers::{CREATION_READERS, DELETION_READERS, Reader};

/// Rounds of each reader.
const ROUNDS: usize = 15;

/// Bytes that a reader reads in each round: some milliseconds.
const BYTES_PER_ROUND: usize = 8 << 20;

/// Sizes of the reviews in bytes: a usual pod, and a pod with many containers.
const SIZES: [usize; 2] = [9_500, 102_400];

fn main() {
    for bytes in SIZES {
        measure("deletion out of scope", &reviews::deletion(bytes), &DELETION_READERS);
        measure("creation with a mutation", &reviews::creation(bytes), &CREATION_READERS);
    }
}

/// Measures the readers, and prints their times beside that of the first one.
fn measure(title: &str, review: &str, readers: &[Reader]) {
    let body = review.as_bytes();
    for reader in readers {
        assert!((reader.read)(body), "{}: the review was read differently", reader.name);
    }
    let count = BYTES_PER_ROUND / body.len();
    let mut rounds = vec![Vec::new(); readers.len()];
    for _ in 0..ROUNDS {
        for (reader, times) in readers.iter().zip(&mut rounds) {
            let began = Instant::now();
            for _ in 0..count {
                black_box((reader.read)(black_box(body)));
            }
            times.push(began.elapsed().as_secs_f64() * 1e6 / count as f64);
        }
    }
    let medians: Vec<f64> = rounds.into_iter().map(median).collect();
    println!("{title}, {} bytes", body.len());
    for (reader, time) in readers.iter().zip(&medians) {
        println!("  {:<66} {time:>8.1} us {:>6.2} x", reader.name, time / medians[0]);
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
