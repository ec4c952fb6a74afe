//! Tables of what a program has, each with the calls that made it, where somebody wants to know them.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::broken::Noted;

static ARE_NOTED: AtomicBool = AtomicBool::new(false);

/// Notes the call of each object that is made from now on.
pub fn note_calls() {
    ARE_NOTED.store(true, Ordering::Release);
}

/// A table of objects by handle or address.
#[derive(Default)]
pub struct Kept<M> {
    objects: M,
    calls: BTreeMap<u64, Noted>,
}

impl<M: Map> Kept<M> {
    /// Adds an object that this call makes for the program.
    pub fn insert(&mut self, key: u64, object: M::Object) {
        if ARE_NOTED.load(Ordering::Acquire)
            && let Some(call) = Noted::now()
        {
            self.calls.insert(key, call);
        }
        self.objects.put(key, object);
    }

    /// Adds an object that is a part of another one.
    pub fn insert_part(&mut self, key: u64, object: M::Object) {
        self.objects.put(key, object);
    }

    /// Removes an object.
    pub fn remove(&mut self, key: &u64) -> Option<M::Object> {
        self.calls.remove(key);
        self.objects.take(*key)
    }

    /// Returns the objects whose calls are known, each with its call.
    pub fn with_calls(&self) -> impl Iterator<Item = (&M::Object, &Noted)> {
        self.calls.iter().filter_map(|(key, call)| Some((self.objects.object(*key)?, call)))
    }
}

impl<M> Deref for Kept<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.objects
    }
}

impl<M> DerefMut for Kept<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.objects
    }
}

/// What both kinds of maps can do.
pub trait Map {
    /// What is in it.
    type Object;
    /// Adds an object.
    fn put(&mut self, key: u64, object: Self::Object);
    /// Removes one.
    fn take(&mut self, key: u64) -> Option<Self::Object>;
    /// Returns one.
    fn object(&self, key: u64) -> Option<&Self::Object>;
}

impl<T, S: BuildHasher> Map for HashMap<u64, T, S> {
    type Object = T;

    fn put(&mut self, key: u64, object: T) {
        self.insert(key, object);
    }

    fn take(&mut self, key: u64) -> Option<T> {
        self.remove(&key)
    }

    fn object(&self, key: u64) -> Option<&T> {
        self.get(&key)
    }
}

impl<T> Map for BTreeMap<u64, T> {
    type Object = T;

    fn put(&mut self, key: u64, object: T) {
        self.insert(key, object);
    }

    fn take(&mut self, key: u64) -> Option<T> {
        self.remove(&key)
    }

    fn object(&self, key: u64) -> Option<&T> {
        self.get(&key)
    }
}
