//! A bounded cache whose entries expire on tokio's clock.
//!
//! moka bounds the number of entries. Its own expiry reads the clock of the machine, which a simulation cannot advance,
//! so each entry stores the instant from which its lifetime counts (decision 70).
//!
//! It is a crate of its own because `guard`, `etcd` and `kubernetes` use it, and none of them may depend on another for it. This
//! crate must not know what it stores.

use std::{
    borrow::Borrow,
    fmt,
    hash::Hash,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use moka::{policy::EvictionPolicy, sync::Cache};
use tokio::time::Instant;

/// The event from which the lifetime of an entry counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// The entry expires this long after its insertion.
    SinceInsertion(Duration),
    /// The entry expires this long after its last use.
    SinceUse(Duration),
}

/// A cache with a maximum number of entries, which expire. A full cache drops the entries that have not been used for the longest
/// time: moka's default policy would reject new entries instead. Clones share the entries.
#[derive(Clone)]
pub struct ExpiringCache<K, V> {
    entries: Cache<K, Entry<V>>,
    lifetime: Lifetime,
    /// The instant from which the times of entries count.
    epoch: Instant,
    /// Time of the last removal of expired entries.
    purged: Arc<AtomicU64>,
    /// Uses and insertions share this lock, and the removal of expired entries holds it alone: between the check of an entry and its
    /// removal, no other task uses or replaces the entry.
    removal: Arc<RwLock<()>>,
}

#[derive(Clone)]
struct Entry<V> {
    value: V,
    /// Microseconds since the epoch of the cache.
    since: Arc<AtomicU64>,
}

// === impl ExpiringCache ===

impl<K, V> ExpiringCache<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates an empty cache.
    pub fn new(capacity: u64, lifetime: Lifetime) -> Self {
        let eviction = EvictionPolicy::lru();
        let entries = Cache::builder().max_capacity(capacity).eviction_policy(eviction).build();
        Self { entries, lifetime, epoch: Instant::now(), purged: Arc::default(), removal: Arc::default() }
    }

    /// Returns the value of a key, unless it has expired.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.purge();
        let _shared = self.exclude_removal();
        let entry = self.entries.get(key).filter(|entry| !self.is_expired(entry))?;
        self.record_use(&entry);
        Some(entry.value)
    }

    /// Returns the value of a key, unless it has expired. This is no use of the entry, and takes time in proportion to the number of
    /// entries if the cache contains the key.
    pub fn peek<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.purge();
        // moka returns a value without a use only through its iterator.
        if !self.entries.contains_key(key) {
            return None;
        }
        let (_, entry) = self.entries.iter().find(|(found, _)| K::borrow(found.as_ref()) == key)?;
        (!self.is_expired(&entry)).then_some(entry.value)
    }

    /// Returns the value of a key, and inserts the default value if there is none. The second value states whether it was
    /// inserted. Concurrent callers receive the same value.
    pub fn get_or_default<Q>(&self, key: &Q) -> (V, bool)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        V: Default,
    {
        self.purge();
        let _shared = self.exclude_removal();
        let init = || self.entry(V::default());
        let found = self.entries.entry_by_ref(key).or_insert_with_if(init, |entry| self.is_expired(entry));
        let is_fresh = found.is_fresh();
        let entry = found.into_value();
        self.record_use(&entry);
        (entry.value, is_fresh)
    }

    /// Inserts a value, which replaces the previous one.
    pub fn insert(&self, key: K, value: V) {
        self.purge();
        let _shared = self.exclude_removal();
        self.entries.insert(key, self.entry(value));
    }

    /// Removes the value of a key.
    pub fn invalidate<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries.invalidate(key);
    }

    /// Returns all values that have not expired. This is no use of the entries.
    pub fn values(&self) -> impl Iterator<Item = V> {
        self.entries
            .iter()
            .map(|(_, entry)| entry)
            .filter(|entry| !self.is_expired(entry))
            .map(|entry| entry.value)
    }

    /// Evicts the entries beyond the capacity now, and drops their values within the next few insertions. Otherwise, moka evicts many
    /// entries together, after up to 64 insertions. So this call bounds the memory of large values, and the time of an insertion.
    pub fn evict(&self) {
        self.entries.run_pending_tasks();
    }

    fn entry(&self, value: V) -> Entry<V> {
        Entry { value, since: Arc::new(AtomicU64::new(self.now())) }
    }

    /// Microseconds since the epoch.
    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn record_use(&self, entry: &Entry<V>) {
        if let Lifetime::SinceUse(_) = self.lifetime {
            entry.since.store(self.now(), Ordering::Relaxed);
        }
    }

    fn is_expired(&self, entry: &Entry<V>) -> bool {
        self.now().saturating_sub(entry.since.load(Ordering::Relaxed)) >= self.lifetime.micros()
    }

    /// Removes expired entries, at most once in a lifetime.
    fn purge(&self) {
        let (now, purged) = (self.now(), self.purged.load(Ordering::Relaxed));
        let is_due = now.saturating_sub(purged) >= self.lifetime.micros();
        let is_first = || {
            let exchange = self.purged.compare_exchange(purged, now, Ordering::Relaxed, Ordering::Relaxed);
            exchange.is_ok()
        };
        if is_due && is_first() {
            self.remove_if(|entry| self.is_expired(entry));
        }
    }

    /// Removes the entries that match.
    fn remove_if(&self, matches: impl Fn(&Entry<V>) -> bool) {
        let _alone = self.removal.write().unwrap_or_else(PoisonError::into_inner);
        for (key, _) in self.entries.iter().filter(|(_, entry)| matches(entry)) {
            self.entries.invalidate(key.as_ref());
        }
    }

    /// Delays the removal of expired entries until the drop of the returned value.
    fn exclude_removal(&self) -> RwLockReadGuard<'_, ()> {
        self.removal.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> fmt::Debug for ExpiringCache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiringCache").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

// === impl Lifetime ===

impl Lifetime {
    fn micros(self) -> u64 {
        let (Self::SinceInsertion(lifetime) | Self::SinceUse(lifetime)) = self;
        u64::try_from(lifetime.as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn entries_expire_on_the_virtual_clock() {
        let cache: ExpiringCache<String, u32> = ExpiringCache::new(4, Lifetime::SinceInsertion(SECOND));
        cache.insert(String::from("a"), 1);
        advance(SECOND / 2).await;
        assert_eq!(cache.get("a"), Some(1));
        advance(SECOND / 2).await;
        assert_eq!(cache.get("a"), None, "a use does not extend the lifetime");
        assert_eq!(cache.values().count(), 0);
        cache.evict();
        assert_eq!(cache.entries.entry_count(), 0, "expired entries take no memory");
    }

    #[tokio::test(start_paused = true)]
    async fn uses_extend_the_lifetime_of_idle_entries() {
        let cache: ExpiringCache<String, u32> = ExpiringCache::new(4, Lifetime::SinceUse(SECOND));
        assert_eq!(cache.get_or_default("a"), (0, true));
        cache.insert(String::from("a"), 1);
        for _ in 0..3 {
            advance(SECOND * 2 / 3).await;
            assert_eq!(cache.get_or_default("a"), (1, false));
        }
        advance(SECOND).await;
        assert_eq!(cache.get_or_default("a"), (0, true), "an expired value is replaced");
        cache.invalidate("a");
        assert_eq!(cache.get("a"), None);
    }

    /// The default policy of moka rejects new entries as long as the others are used more often.
    #[tokio::test]
    async fn full_cache_keeps_the_entries_that_were_used_last() {
        let cache: ExpiringCache<u32, u32> = ExpiringCache::new(64, Lifetime::SinceUse(SECOND));
        for key in 0..64 {
            cache.insert(key, key);
        }
        for key in (0..64).cycle().take(640) {
            assert_eq!(cache.get(&key), Some(key));
        }
        for key in 64..96 {
            cache.insert(key, key);
            cache.evict();
        }
        let kept: Vec<u32> = (0..96).filter(|key| cache.get(key).is_some()).collect();
        assert_eq!(kept, (32..96).collect::<Vec<u32>>());
    }

    /// The removed entry would otherwise be the new one: two callers would then have different values, for instance locks.
    #[test]
    fn removal_of_an_expired_entry_keeps_its_replacement() {
        let cache: ExpiringCache<u32, u32> = ExpiringCache::new(4, Lifetime::SinceUse(SECOND / 20));
        cache.insert(0, 7);
        std::thread::sleep(SECOND / 10);
        let (replaced, replacement) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            cache.remove_if(|entry| {
                let is_expired = cache.is_expired(entry);
                let (cache, replaced) = (cache.clone(), replaced.clone());
                scope.spawn(move || replaced.send(cache.get_or_default(&0)));
                // The other thread replaces the entry now, or after the removal.
                let _ = replacement.recv_timeout(SECOND / 2);
                is_expired
            });
        });
        assert_eq!(cache.entries.get(&0).map(|entry| entry.value), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn peek_neither_extends_the_lifetime_nor_delays_the_eviction() {
        let cache: ExpiringCache<u32, u32> = ExpiringCache::new(2, Lifetime::SinceUse(SECOND));
        cache.insert(0, 0);
        advance(SECOND / 2).await;
        assert_eq!((cache.peek(&0), cache.peek(&1)), (Some(0), None));
        advance(SECOND / 2).await;
        assert_eq!(cache.peek(&0), None);
        cache.evict();
        assert_eq!(cache.entries.entry_count(), 0, "expired entries take no memory");
        for key in 1..4 {
            cache.insert(key, key);
            cache.evict();
            assert_eq!(cache.peek(&1).is_some(), key < 3, "key {key}");
        }
    }

    /// Without an eviction after each insertion, the cache held up to 225 values in this test.
    #[tokio::test]
    async fn evicted_values_are_dropped_soon() {
        let cache: ExpiringCache<u32, Arc<()>> = ExpiringCache::new(96, Lifetime::SinceUse(SECOND));
        let value = Arc::new(());
        for key in 0..3000 {
            cache.insert(key, Arc::clone(&value));
            cache.evict();
            let held = || Arc::strong_count(&value) - 1;
            // Another test that uses a cache at this moment delays the drop of values.
            for _ in 0..1000 {
                if held() <= 128 {
                    break;
                }
                sleep(Duration::from_millis(1)).await;
                cache.evict();
            }
            assert!(held() <= 128, "{} values after insertion {key}", held());
        }
    }
}
