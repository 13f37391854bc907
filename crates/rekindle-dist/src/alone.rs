//! A world of one rank.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::collective::{Pending, check_rank};
use crate::{Collective, DistError, Reduction};

/// A world of one rank, for tests of what stands on a [`Collective`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

/// What this process has sent itself.
static SENT: Mutex<VecDeque<Vec<u8>>> = Mutex::new(VecDeque::new());

impl Collective for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn shared(&self) -> Arc<dyn Collective> {
        Arc::new(Self)
    }

    fn split(&self, _: usize, _: usize) -> Result<Box<dyn Collective>, DistError> {
        Ok(Box::new(Self))
    }

    fn broadcast(&self, root: usize, data: Vec<u8>) -> Result<Vec<u8>, DistError> {
        check_rank(root, 1)?;
        Ok(data)
    }

    fn start_all_gather(&self, data: Vec<u8>) -> Pending<Vec<Vec<u8>>> {
        Pending::done(Ok(vec![data]))
    }

    fn start_all_reduce(&self, values: Vec<f32>, _: Reduction) -> Pending<Vec<f32>> {
        Pending::done(Ok(values))
    }

    fn start_reduce_scatter(&self, values: Vec<f32>, _: Reduction) -> Pending<Vec<f32>> {
        Pending::done(Ok(values))
    }

    fn start_all_gather_parts(&self, part: Vec<f32>) -> Pending<Vec<f32>> {
        Pending::done(Ok(part))
    }

    fn exchange(
        &self,
        send: Option<(usize, Vec<u8>)>,
        from: Option<usize>,
    ) -> Result<Option<Vec<u8>>, DistError> {
        let mut sent = SENT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((to, data)) = send {
            check_rank(to, 1)?;
            sent.push_back(data);
        }
        let Some(from) = from else { return Ok(None) };
        check_rank(from, 1)?;
        // With several ranks this would be waited for, and nobody else can come.
        match sent.pop_front() {
            Some(data) => Ok(Some(data)),
            None => {
                Err(DistError::Pipeline { reason: "rank 0 receives from itself what it has not sent".into() })
            }
        }
    }

    fn barrier(&self) -> Result<(), DistError> {
        Ok(())
    }

    fn abort(&self, reason: &str) -> ! {
        eprintln!("rank 0 of 1: {reason}");
        std::process::exit(1)
    }
}
