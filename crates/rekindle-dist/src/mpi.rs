//! Ranks that are processes of an MPI run. Everything that touches MPI is in this file.
//!
//! One thread of a process speaks MPI; all others hand it what to do. So nothing is asked of MPI's support of threads, and what
//! was started goes on while a backward computes.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::{CommunicatorCollectives, Destination, Root, Source};
use rekindle::Bytes;

use crate::collective::{Pending, check_even, check_rank};
use crate::neighbours::{self, Neighbours};
use crate::watchdog::{Patience, Watchdog, Within};
use crate::{Collective, DistError, Reduction};

/// How many values of each rank travel at once: MPI counts in 31 bits, and what is on its way takes memory.
const BLOCK: usize = 1 << 20;
/// The same for messages, in bytes.
const MESSAGE: usize = 1 << 30;
/// What a run that was ended exits with.
const EXIT_CODE: i32 = 70;
/// How long a rank that ends the run waits for MPI to do so.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// What the thread that speaks MPI is handed; with nothing it ends.
type Job = Option<Box<dyn FnOnce(&mut Vec<SimpleCommunicator>) + Send>>;

/// A group of the ranks of an MPI run. MPI ends when the world, which [`Mpi::start`] gives, is dropped; groups that are still there
/// then get errors.
///
/// A process that was started without `mpirun` is a world of one rank.
pub struct Mpi {
    thread: Arc<Thread>,
    /// Which of the thread's communicators.
    group: usize,
    rank: usize,
    size: usize,
    /// Whether MPI ends with this.
    ends: bool,
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Mpi")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // Not with the last group: a graph that nobody has gone back through holds a model, and so its groups, for ever.
        if self.ends {
            self.thread.end();
        }
    }
}

/// The thread that speaks MPI. MPI ends with the world.
struct Thread {
    jobs: Mutex<Sender<Job>>,
    handle: Mutex<Option<JoinHandle<()>>>,
    watchdog: Watchdog,
}

impl Thread {
    fn jobs(&self) -> Sender<Job> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends MPI, together with the other ranks.
    fn end(&self) {
        // Nobody asks for anything from here on, and nobody is to be told off for that.
        self.watchdog.began("the end");
        // Not by letting go of the channel: the hook for panics has an end of it, too.
        let _ = self.jobs().send(None);
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle {
            // It panicked or it did not: MPI has ended.
            let _ = handle.join();
        }
    }
}

/// Ends the run of all ranks; with a kill if MPI does not answer.
fn end(jobs: &Sender<Job>, rank: usize, size: usize, reason: &str) -> ! {
    eprintln!("rank {rank} of {size}: {reason}");
    let abort: Job = Some(Box::new(|groups| match groups.first() {
        Some(world) => world.abort(EXIT_CODE),
        None => std::process::exit(EXIT_CODE),
    }));
    if jobs.send(abort).is_ok() {
        std::thread::sleep(ABORT_TIMEOUT);
    }
    // It is busy with ranks that will not come, or gone. A rank that dies of a signal ends the run as well.
    std::process::abort()
}

impl Mpi {
    /// Starts MPI: the world of all ranks.
    ///
    /// From then on a panic in any thread of any rank ends the run, because the other ranks would wait for it for ever. So does,
    /// with [`Patience`], a rank that has neither asked for anything nor waited for others for so long, or one that is stopped.
    ///
    /// # Errors
    /// When MPI was started before in this process, or there is no thread for it.
    pub fn start(patience: impl Into<Patience>) -> Result<Self, DistError> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (started, told) = mpsc::channel();
        let watchdog = Watchdog::new();
        let speak = move || {
            let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
                let _ = started.send(None);
                return;
            };
            let world = universe.world();
            let (rank, size) = (index(world.rank()), index(world.size()));
            let own = neighbours::place();
            let mut places = vec![[0; 2]; size];
            world.all_gather_into(&own[..], places.as_flattened_mut());
            let _ = started.send(Some((rank, size, Neighbours::new(rank, &places))));
            let mut groups = vec![world];
            while let Ok(Some(job)) = todo.recv() {
                job(&mut groups);
            }
            drop(groups);
            // Ends MPI, together with the other ranks.
            drop(universe);
        };
        let handle = std::thread::Builder::new().name("rekindle-mpi".to_owned()).spawn(speak);
        let handle = handle.map_err(|source| DistError::Thread { source })?;
        let (rank, size, neighbours) = told.recv().ok().flatten().ok_or(DistError::Started)?;
        let usual = std::panic::take_hook();
        let at_panic = jobs.clone();
        // A lock, because a hook is called by all threads.
        let at_panic = Mutex::new(at_panic);
        std::panic::set_hook(Box::new(move |panic| {
            usual(panic);
            let jobs = at_panic.lock().unwrap_or_else(PoisonError::into_inner);
            end(&jobs, rank, size, &format!("panicked: {panic}"));
        }));
        let to_end = jobs.clone();
        let bark = move |other: Option<usize>, reason: String| {
            end(&to_end, other.unwrap_or(rank), size, &reason);
        };
        let watched = watchdog.watch(patience.into(), neighbours, bark);
        watched.map_err(|source| DistError::Thread { source })?;
        let thread = Thread { jobs: Mutex::new(jobs), handle: Mutex::new(Some(handle)), watchdog };
        Ok(Self { thread: Arc::new(thread), group: 0, rank, size, ends: true })
    }

    /// Lets this rank compute for so long between two things that it asks for, and no longer, until what this gives is let go of: for
    /// steps that took a second so far, where [`Patience`] has to allow for minutes at the start. Without any patience nobody looks.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use rekindle_dist::{Collective, Mpi};
    ///
    /// let world = Mpi::start(Some(Duration::from_secs(600)))?;
    /// let step = world.within(Duration::from_secs(20));
    /// world.barrier()?;
    /// drop(step);
    /// # Ok::<(), rekindle_dist::DistError>(())
    /// ```
    pub fn within(&self, most: Duration) -> Within {
        self.thread.watchdog.within(most)
    }

    /// Has the thread do something with this group.
    fn start_job<T: Send + 'static>(
        &self,
        what: &'static str,
        job: impl FnOnce(&SimpleCommunicator) -> Result<T, DistError> + Send + 'static,
    ) -> Pending<T> {
        let group = self.group;
        self.start_with_groups(what, move |groups| job(&groups[group]))
    }

    fn start_with_groups<T: Send + 'static>(
        &self,
        what: &'static str,
        job: impl FnOnce(&mut Vec<SimpleCommunicator>) -> Result<T, DistError> + Send + 'static,
    ) -> Pending<T> {
        let (send, answer) = mpsc::channel();
        let watchdog = self.thread.watchdog.clone();
        let job: Job = Some(Box::new(move |groups| {
            watchdog.began(what);
            let made = job(groups);
            watchdog.ended(what);
            // Nobody waits for it, then.
            let _ = send.send(made);
        }));
        // An answer that never comes is an error of whoever waits for it.
        let _ = self.thread.jobs().send(job);
        Pending::new(self.rank, what, answer)
    }
}

/// What a rank asks for, to be compared with the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    Split,
    Broadcast { root: usize },
    AllGather,
    AllReduce { values: usize, how: Reduction },
    ReduceScatter { values: usize, how: Reduction },
    AllGatherParts { values: usize },
    Barrier,
}

impl Ask {
    fn words(self) -> [u64; 3] {
        let how = |how| u64::from(how == Reduction::Native);
        match self {
            Self::Split => [1, 0, 0],
            Self::Broadcast { root } => [2, root as u64, 0],
            Self::AllGather => [3, 0, 0],
            Self::AllReduce { values, how: as_asked } => [4, values as u64, how(as_asked)],
            Self::ReduceScatter { values, how: as_asked } => [5, values as u64, how(as_asked)],
            Self::AllGatherParts { values } => [6, values as u64, 0],
            Self::Barrier => [7, 0, 0],
        }
    }

    fn describe([what, values, native]: [u64; 3]) -> String {
        let how = if native == 0 { Reduction::Ordered } else { Reduction::Native };
        match what {
            1 => "a split".to_owned(),
            2 => format!("a broadcast of rank {values}"),
            3 => "an all-gather".to_owned(),
            4 => format!("an all-reduce of {values} values, {how}"),
            5 => format!("a reduce-scatter of {values} values, {how}"),
            6 => format!("an all-gather of parts of {values} values"),
            _ => "a barrier".to_owned(),
        }
    }

    /// Fails on all ranks unless they ask for the same. MPI itself would hang, or crash. Gives what each has beside that.
    fn compare(self, ranks: &SimpleCommunicator, beside: usize) -> Result<Vec<usize>, DistError> {
        let own = self.words();
        let sent = [own[0], own[1], own[2], beside as u64];
        let mut all = vec![0_u64; 4 * index(ranks.size())];
        ranks.all_gather_into(&sent[..], &mut all[..]);
        let (all, _) = all.as_chunks::<4>();
        match all.iter().position(|found| found[..3] != own) {
            None => Ok(all.iter().map(|found| usize::try_from(found[3]).unwrap_or(usize::MAX)).collect()),
            Some(other) => Err(DistError::OutOfStep {
                rank: index(ranks.rank()),
                own: Self::describe(own),
                other,
                found: Self::describe([all[other][0], all[other][1], all[other][2]]),
            }),
        }
    }
}

/// MPI numbers ranks with a sign.
fn index(rank: mpi::Rank) -> usize {
    usize::try_from(rank).unwrap_or_default()
}

fn number(rank: usize) -> mpi::Rank {
    mpi::Rank::try_from(rank).unwrap_or(mpi::Rank::MAX)
}

/// One block of a sum by rank: each rank sends each other rank's part to it, and adds up its own from the first to the last.
fn ordered_part(ranks: &SimpleCommunicator, block: &[f32]) -> Vec<f32> {
    let mut parts = vec![0.0; block.len()];
    ranks.all_to_all_into(block, &mut parts[..]);
    let length = block.len() / index(ranks.size());
    // Where the first part lies, because memory counts while a backward goes on.
    let (sum, others) = parts.split_at_mut(length);
    for part in others.chunks_exact(length.max(1)) {
        for (sum, value) in sum.iter_mut().zip(part) {
            *sum += value;
        }
    }
    parts.truncate(length);
    parts
}

fn all_reduce(ranks: &SimpleCommunicator, mut values: Vec<f32>, how: Reduction) -> Vec<f32> {
    let size = index(ranks.size());
    match how {
        Reduction::Native => {
            let mut sum = vec![0.0; values.len().min(BLOCK)];
            for block in values.chunks_mut(BLOCK) {
                let sum = &mut sum[..block.len()];
                ranks.all_reduce_into(&*block, sum, SystemOperation::sum());
                block.copy_from_slice(sum);
            }
        }
        Reduction::Ordered => {
            for block in values.chunks_mut(BLOCK * size) {
                if block.len().is_multiple_of(size) {
                    let part = ordered_part(ranks, block);
                    ranks.all_gather_into(&part[..], block);
                    continue;
                }
                let mut padded = block.to_vec();
                padded.resize(block.len().next_multiple_of(size), 0.0);
                let part = ordered_part(ranks, &padded);
                ranks.all_gather_into(&part[..], &mut padded[..]);
                block.copy_from_slice(&padded[..block.len()]);
            }
        }
    }
    values
}

fn reduce_scatter(ranks: &SimpleCommunicator, values: &[f32], how: Reduction) -> Vec<f32> {
    let size = index(ranks.size());
    let length = values.len() / size;
    let mut part = Vec::with_capacity(length);
    for start in (0..length).step_by(BLOCK) {
        let here = start..(start + BLOCK).min(length);
        // The same place of every rank's part.
        let block: Vec<f32> =
            (0..size).flat_map(|rank| &values[rank * length..][here.clone()]).copied().collect();
        match how {
            Reduction::Ordered => part.extend(ordered_part(ranks, &block)),
            Reduction::Native => {
                let mut sum = vec![0.0; here.len()];
                ranks.reduce_scatter_block_into(&block[..], &mut sum[..], SystemOperation::sum());
                part.extend(sum);
            }
        }
    }
    part
}

fn all_gather_parts(ranks: &SimpleCommunicator, part: &[f32]) -> Vec<f32> {
    let size = index(ranks.size());
    let mut all = vec![0.0; part.len() * size];
    if part.len() <= BLOCK {
        // As it comes it is in its place.
        ranks.all_gather_into(part, &mut all[..]);
        return all;
    }
    let mut gathered = vec![0.0; part.len().min(BLOCK) * size];
    for (number, block) in part.chunks(BLOCK).enumerate() {
        let gathered = &mut gathered[..block.len() * size];
        ranks.all_gather_into(block, gathered);
        for (rank, of_rank) in gathered.chunks_exact(block.len()).enumerate() {
            all[rank * part.len() + number * BLOCK..][..block.len()].copy_from_slice(of_rank);
        }
    }
    all
}

/// The pieces that a message travels in: its length, then its bytes.
fn exchange(
    ranks: &SimpleCommunicator,
    send: Option<(usize, Vec<u8>)>,
    from: Option<usize>,
) -> Result<Option<Vec<u8>>, DistError> {
    let length = send.as_ref().map_or(0, |(_, data)| data.len() as u64).to_le_bytes();
    mpi::request::scope(|scope| {
        // Sends go on while this rank receives: two ranks that send to each other do not wait for each other.
        let mut sends = Vec::new();
        if let Some((to, data)) = &send {
            let to = ranks.process_at_rank(number(*to));
            sends.push(to.immediate_send(scope, &length[..]));
            sends.extend(data.chunks(MESSAGE).map(|piece| to.immediate_send(scope, piece)));
        }
        let received = from.map(|from| receive(ranks, from));
        // Before anything is said of what came: a send that is not waited for ends the process.
        for send in sends {
            send.wait();
        }
        received.transpose()
    })
}

fn receive(ranks: &SimpleCommunicator, from: usize) -> Result<Vec<u8>, DistError> {
    let process = ranks.process_at_rank(number(from));
    let (length, _) = process.receive_vec::<u8>();
    let Ok(length) = <[u8; 8]>::try_from(&length[..]).map(u64::from_le_bytes) else {
        return Err(DistError::Message {
            from,
            found: Bytes::new(length.len() as u64),
            expected: "a length of 8 bytes".to_owned(),
        });
    };
    let mut data = vec![0_u8; usize::try_from(length).unwrap_or(usize::MAX)];
    for piece in data.chunks_mut(MESSAGE) {
        process.receive_into(piece);
    }
    Ok(data)
}

impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn shared(&self) -> Arc<dyn Collective> {
        let (group, rank, size) = (self.group, self.rank, self.size);
        Arc::new(Self { thread: Arc::clone(&self.thread), group, rank, size, ends: false })
    }

    fn split(&self, color: usize, key: usize) -> Result<Box<dyn Collective>, DistError> {
        let group = self.group;
        let split = self.start_with_groups("split", move |groups| {
            Ask::Split.compare(&groups[group], 0)?;
            let color = mpi::topology::Color::with_value(number(color));
            let made = groups[group].split_by_color_with_key(color, number(key));
            // Only a color that is none at all gives no group.
            let made = made.ok_or(DistError::NoRank { found: key, size: index(groups[group].size()) })?;
            let (rank, size) = (index(made.rank()), index(made.size()));
            groups.push(made);
            Ok((groups.len() - 1, rank, size))
        });
        let (group, rank, size) = split.wait()?;
        Ok(Box::new(Self { thread: Arc::clone(&self.thread), group, rank, size, ends: false }))
    }

    fn broadcast(&self, root: usize, data: Vec<u8>) -> Result<Vec<u8>, DistError> {
        check_rank(root, self.size)?;
        let job = move |ranks: &SimpleCommunicator| {
            let mut data = data;
            let lengths = Ask::Broadcast { root }.compare(ranks, data.len())?;
            data.resize(lengths[root], 0);
            for piece in data.chunks_mut(MESSAGE) {
                ranks.process_at_rank(number(root)).broadcast_into(piece);
            }
            Ok(data)
        };
        self.start_job("broadcast", job).wait()
    }

    fn start_all_gather(&self, data: Vec<u8>) -> Pending<Vec<Vec<u8>>> {
        let job = move |ranks: &SimpleCommunicator| {
            let lengths = Ask::AllGather.compare(ranks, data.len())?;
            let mut all: Vec<Vec<u8>> = lengths.into_iter().map(|length| vec![0; length]).collect();
            all[index(ranks.rank())] = data;
            for (rank, of_rank) in all.iter_mut().enumerate() {
                for piece in of_rank.chunks_mut(MESSAGE) {
                    ranks.process_at_rank(number(rank)).broadcast_into(piece);
                }
            }
            Ok(all)
        };
        self.start_job("all-gather", job)
    }

    fn start_all_reduce(&self, values: Vec<f32>, how: Reduction) -> Pending<Vec<f32>> {
        self.start_job("all-reduce", move |ranks| {
            Ask::AllReduce { values: values.len(), how }.compare(ranks, 0)?;
            Ok(all_reduce(ranks, values, how))
        })
    }

    fn start_reduce_scatter(&self, values: Vec<f32>, how: Reduction) -> Pending<Vec<f32>> {
        let size = self.size;
        self.start_job("reduce-scatter", move |ranks| {
            Ask::ReduceScatter { values: values.len(), how }.compare(ranks, 0)?;
            check_even(values.len(), size)?;
            Ok(reduce_scatter(ranks, &values, how))
        })
    }

    fn start_all_gather_parts(&self, part: Vec<f32>) -> Pending<Vec<f32>> {
        self.start_job("all-gather of parts", move |ranks| {
            Ask::AllGatherParts { values: part.len() }.compare(ranks, 0)?;
            Ok(all_gather_parts(ranks, &part))
        })
    }

    fn exchange(
        &self,
        send: Option<(usize, Vec<u8>)>,
        from: Option<usize>,
    ) -> Result<Option<Vec<u8>>, DistError> {
        for rank in send.iter().map(|(to, _)| *to).chain(from) {
            check_rank(rank, self.size)?;
        }
        self.start_job("exchange", move |ranks| exchange(ranks, send, from)).wait()
    }

    fn barrier(&self) -> Result<(), DistError> {
        self.start_job("barrier", |ranks| Ask::Barrier.compare(ranks, 0).map(drop)).wait()
    }

    fn abort(&self, reason: &str) -> ! {
        end(&self.thread.jobs(), self.rank, self.size, reason)
    }
}
