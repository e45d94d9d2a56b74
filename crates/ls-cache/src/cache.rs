//! The cache as its users see it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64 as StaticU64;

use crate::bits::BitSet;
use crate::frames::Frames;
use crate::key::{FRAME_MULTIPLE, Space};
use crate::lease::RawPin;
use crate::ledger::Ledger;
use crate::slab::Slab;
use crate::stats::Counts;
use crate::sync::{Arc, Mutex, MutexGuard, Ordering};
use crate::{
    CacheError, Fill, Key, Layout, Lease, Loan, Pin, Policy, PolicyKind, ReserveError, Stats, Used,
};

/// Keys for which one lock is taken by [`Cache::reserve_many`].
const BATCH: usize = 32;

/// A handle of a cache; clones are handles of the same one.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

/// What all handles, leases and fills share.
pub(crate) struct Inner {
    /// Tells the pins of different caches apart.
    pub id: u64,
    pub frames: Frames,
    ledger: Mutex<Ledger>,
    counts: Counts,
}

impl Inner {
    pub fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller owns a pin of `frame` and gives it up.
    #[inline]
    pub fn unpin(&self, frame: u32) {
        if self.frames.unpin(frame) {
            self.let_go(frame);
        }
    }

    #[cold]
    pub fn let_go(&self, frame: u32) {
        self.lock().let_go(&self.frames, frame);
    }
}

impl Cache {
    /// A cache of at most `budget_bytes` for the keys of `layout`.
    ///
    /// Address space is reserved for the whole budget (or for all keys, if that is less); memory
    /// is used as frames are. The budget counts whole frames and no bookkeeping, which is some 25
    /// bytes a frame and 10 to 25 bytes a key.
    ///
    /// # Errors
    ///
    /// If the frame size is zero or no multiple of 4096, there are no keys or too many, the budget
    /// is below one frame, or the system refuses the address space.
    pub fn new(layout: Layout, budget_bytes: u64, policy: PolicyKind) -> Result<Self, CacheError> {
        Self::build(&layout, budget_bytes, || policy.build(&layout))
    }

    /// As [`Cache::new`], with a policy of the caller's own.
    ///
    /// # Errors
    ///
    /// As [`Cache::new`].
    pub fn with_policy(
        layout: Layout,
        budget_bytes: u64,
        policy: Box<dyn Policy>,
    ) -> Result<Self, CacheError> {
        Self::build(&layout, budget_bytes, || policy)
    }

    /// Makes the policy last: it allocates for the keys.
    fn build(
        layout: &Layout,
        budget_bytes: u64,
        policy: impl FnOnce() -> Box<dyn Policy>,
    ) -> Result<Self, CacheError> {
        static NEXT_ID: StaticU64 = StaticU64::new(0);
        let frame_bytes = layout.frame_bytes;
        if frame_bytes == 0 || !frame_bytes.is_multiple_of(FRAME_MULTIPLE) {
            return Err(CacheError::FrameBytes { frame_bytes, multiple: FRAME_MULTIPLE });
        }
        let space = Space::new(layout)?;
        let wanted = budget_bytes / frame_bytes as u64;
        if wanted == 0 {
            return Err(CacheError::Budget { budget_bytes, frame_bytes });
        }
        // A key has at most one frame. There are fewer than 2³² keys, so the cast loses nothing.
        let n_frames = wanted.min(u64::from(space.n_keys())) as u32;
        let slab = Self::slab(n_frames, frame_bytes)?;
        let inner = Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            frames: Frames::new(space, slab, n_frames),
            ledger: Mutex::new(Ledger::new(n_frames, policy())),
            counts: Counts::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn slab(n_frames: u32, frame_bytes: usize) -> Result<Slab, CacheError> {
        let bytes = u64::from(n_frames).saturating_mul(frame_bytes as u64);
        let too_many = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let fits = usize::try_from(bytes).ok().filter(|bytes| *bytes <= isize::MAX as usize);
        fits.ok_or_else(too_many)
            .and_then(|len| Slab::new(len, frame_bytes))
            .map_err(|source| CacheError::Reserve { bytes, source })
    }

    /// Bytes of each frame.
    pub fn frame_bytes(&self) -> usize {
        self.inner.frames.slab.frame_bytes()
    }

    /// Lends the memory of all frames to a device that reads them itself: see [`Loan`].
    pub fn lend(&self) -> Loan {
        Loan::new(Arc::clone(&self.inner))
    }

    /// Number of groups.
    pub fn n_groups(&self) -> usize {
        self.inner.frames.space.n_groups()
    }

    /// Holds the frame of `key`, if it is resident. Takes no lock.
    ///
    /// # Panics
    ///
    /// If 67 million pins of one frame were dropped without being given back.
    #[inline]
    pub fn get(&self, key: Key) -> Option<Lease<'_>> {
        self.pin(key).map(|pin| Lease::new(&self.inner, pin))
    }

    /// As [`Cache::get`], without borrowing the cache. The pin has to be given back.
    ///
    /// # Panics
    ///
    /// As [`Cache::get`].
    #[inline]
    pub fn pin(&self, key: Key) -> Option<Pin> {
        let slot = self.inner.frames.space.slot(key)?;
        let frame = self.inner.frames.pin(slot);
        self.inner.counts.count(frame.is_some());
        Some(Pin::new(RawPin { key, frame: frame?, cache: self.inner.id }))
    }

    /// The bytes of a pinned frame.
    ///
    /// # Panics
    ///
    /// If the pin is of another cache.
    #[inline]
    pub fn pinned_bytes<'a>(&'a self, pin: &'a Pin) -> &'a [u8] {
        pin.bytes(&self.inner)
    }

    /// The number of a pinned frame: it begins so many frames behind the begin of a [`Loan`].
    ///
    /// # Panics
    ///
    /// If the pin is of another cache.
    #[inline]
    pub fn pinned_frame(&self, pin: &Pin) -> u32 {
        pin.frame_of(&self.inner)
    }

    /// Gives a pin back. Takes no lock, except while the budget is exceeded or nothing is kept.
    ///
    /// # Panics
    ///
    /// If the pin is of another cache.
    #[inline]
    pub fn unpin(&self, pin: Pin) {
        self.inner.unpin(pin.frame_of(&self.inner));
    }

    /// Turns a pin into a lease, which gives it back when dropped.
    ///
    /// # Panics
    ///
    /// If the pin is of another cache.
    pub fn lease(&self, pin: Pin) -> Lease<'_> {
        Lease::new(&self.inner, pin)
    }

    /// Whether `key` is resident at this moment. Counts as neither hit nor miss.
    pub fn contains(&self, key: Key) -> bool {
        let frames = &self.inner.frames;
        let Some(slot) = frames.space.slot(key) else { return false };
        frames.frame_of(slot).is_some_and(|frame| frames.word(frame).holds(slot))
    }

    /// An empty frame for `key`, evicting another key's if there is no free one.
    ///
    /// # Errors
    ///
    /// If all frames are pinned or being filled at this moment, `key` is resident or being filled already, or is
    /// not in the layout.
    pub fn reserve(&self, key: Key) -> Result<Fill, ReserveError> {
        let frame = self.inner.lock().reserve(&self.inner.frames, key, true)?;
        Ok(Fill::new(Arc::clone(&self.inner), key, frame))
    }

    /// As [`Cache::reserve`], but of free frames only: nothing is evicted.
    ///
    /// # Errors
    ///
    /// As [`Cache::reserve`], and if no frame is free.
    pub fn reserve_free(&self, key: Key) -> Result<Fill, ReserveError> {
        let frame = self.inner.lock().reserve(&self.inner.frames, key, false)?;
        Ok(Fill::new(Arc::clone(&self.inner), key, frame))
    }

    /// [`Cache::reserve`] for many keys with few locks. Calls `each` with every key and what came
    /// of it, in order, until it breaks or the keys end.
    ///
    /// Up to 32 keys are taken and reserved before `each` hears of them; no lock is held while it
    /// runs. So where the number of fills has a limit, limit the keys: a break throws away the
    /// fills that were made in advance. After the first key without a frame no further one is
    /// tried in advance.
    pub fn reserve_many(
        &self,
        keys: impl IntoIterator<Item = Key>,
        mut each: impl FnMut(Key, Result<Fill, ReserveError>) -> ControlFlow<()>,
    ) {
        let mut keys = keys.into_iter().fuse();
        let mut batch: [Option<(Key, Result<Fill, ReserveError>)>; BATCH] = Default::default();
        let mut wanted = [None; BATCH];
        loop {
            wanted.fill_with(|| keys.next());
            let mut next = 0;
            while wanted.get(next).is_some_and(Option::is_some) {
                let n = self.reserve_batch(&wanted[next..], &mut batch);
                next += n;
                for (key, result) in batch[..n].iter_mut().filter_map(Option::take) {
                    if each(key, result).is_break() {
                        return;
                    }
                }
            }
            if next < BATCH {
                return;
            }
        }
    }

    /// Reserves under one lock until there is no frame; returns how many keys it tried.
    fn reserve_batch(
        &self,
        keys: &[Option<Key>],
        batch: &mut [Option<(Key, Result<Fill, ReserveError>)>],
    ) -> usize {
        let mut ledger = self.inner.lock();
        let mut n = 0;
        for (key, entry) in keys.iter().map_while(|key| *key).zip(batch) {
            let frame = ledger.reserve(&self.inner.frames, key, true);
            *entry = Some((key, frame.map(|f| Fill::new(Arc::clone(&self.inner), key, f))));
            n += 1;
            if frame == Err(ReserveError::NoFrame) {
                break;
            }
        }
        n
    }

    /// Frees the frame of `key`, if it is resident and no one holds it; whether that came about. For
    /// callers that decide by themselves who has to go: the policy is not asked.
    pub fn evict(&self, key: Key) -> bool {
        let frames = &self.inner.frames;
        let mut ledger = self.inner.lock();
        let frame = frames.space.slot(key).and_then(|slot| frames.frame_of(slot));
        frame.is_some_and(|frame| ledger.evict(frames, frame))
    }

    /// Computing enters `group`: its next visit is now the farthest away. Pin what the visit needs
    /// before or soon after.
    pub fn visit(&self, group: u32) {
        self.with_policy_settled(|policy| policy.visit(group));
    }

    /// The visit of `group` has used these keys. To be called once a visit, at its end: recency and
    /// frequency come from here, not from pins.
    pub fn used(&self, group: u32, used: Used<'_>) {
        self.with_policy_settled(|policy| policy.used(group, used));
    }

    /// A new sequence begins: what was counted for the last one does not count any more.
    pub fn new_context(&self) {
        self.with_policy_settled(|policy| policy.new_context());
    }

    /// Sets a group's order from hottest to coldest for [`PolicyKind::Hot`]; keys that are not
    /// named come after those that are. Other policies ignore it.
    ///
    /// # Errors
    ///
    /// If the group does not exist, or an index is named twice or does not exist.
    pub fn set_hot(&self, group: u32, order: &[u32]) -> Result<(), CacheError> {
        let space = &self.inner.frames.space;
        let range = space.group(group);
        let (start, end) = range.ok_or(CacheError::Group { group, n_groups: space.n_groups() })?;
        let n_keys = end - start;
        let mut named = BitSet::new(n_keys as usize);
        let bad = order.iter().find(|index| **index >= n_keys || !named.insert(**index));
        if let Some(&index) = bad {
            return Err(CacheError::HotOrder { group, index, n_keys });
        }
        self.with_policy_settled(|policy| policy.set_hot(group, order));
        Ok(())
    }

    fn with_policy_settled(&self, call: impl FnOnce(&mut dyn Policy)) {
        let mut ledger = self.inner.lock();
        ledger.settle(&self.inner.frames);
        call(&mut *ledger.policy);
    }

    /// Changes the budget, at most to the one that the cache was made with.
    ///
    /// A smaller one holds at once: what no one holds is evicted and its pages are given back to
    /// the system (on Linux and Android; elsewhere they only go unused; after the end of a [`Loan`],
    /// if there is one). What is pinned or being
    /// filled goes the moment it is let go, and until then no key gets a frame. A budget below one
    /// frame keeps nothing.
    pub fn set_budget(&self, bytes: u64) {
        let n_frames = bytes / self.frame_bytes() as u64;
        let n_frames = u32::try_from(n_frames).unwrap_or(u32::MAX);
        self.inner.lock().set_budget(&self.inner.frames, n_frames);
    }

    /// Sets how many frames are for keys that pass through: those being filled ahead of computing
    /// and those in use. The rest is shared out over the groups. If more frames than this are
    /// under way at a time, they take from what is kept.
    pub fn set_transit(&self, n_frames: u32) {
        self.inner.lock().set_transit(n_frames);
    }

    /// Counts and sizes. Looks at every key; meant to be asked now and then, not per key.
    pub fn stats(&self) -> Stats {
        let frames = &self.inner.frames;
        // With the lock, so that no frame comes or goes while they are counted.
        let ledger = self.inner.lock();
        let mut stats = Stats {
            hits: self.inner.counts.hits(),
            misses: self.inner.counts.misses(),
            evictions: ledger.n_evicted,
            budget_frames: u64::from(ledger.budget),
            capacity_frames: frames.n_frames(),
            free: u64::from(ledger.budget.saturating_sub(ledger.occupied)),
            bytes: u64::from(ledger.occupied) * self.frame_bytes() as u64,
            group_resident: vec![0; frames.space.n_groups()],
            ..Stats::default()
        };
        for (group, n_resident) in stats.group_resident.iter_mut().enumerate() {
            let (start, end) = frames.space.group(group as u32).unwrap_or_default();
            for frame in (start..end).filter_map(|slot| frames.frame_of(slot)) {
                let word = frames.word(frame);
                stats.filling += u64::from(word.is_filling());
                stats.pinned += u64::from(word.is_resident() && word.pins() > 0);
                *n_resident += u32::from(word.is_resident());
            }
            stats.resident += u64::from(*n_resident);
        }
        stats
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frames = &self.inner.frames;
        f.debug_struct("Cache")
            .field("frames", &frames.n_frames())
            .field("frame_bytes", &self.frame_bytes())
            .field("keys", &frames.space.n_keys())
            .finish()
    }
}
