// Memory that was freed and that the C library keeps for later. Nothing here where it is not glibc.
#ifndef DELTAFOLD_BASE_HEAP_H_
#define DELTAFOLD_BASE_HEAP_H_

namespace df {

// For a process that lives long and now and then needs much: blocks of a MiB and more become mappings of their own,
// which go back to the system when they are freed, as does the end of a heap from that size on. Without this glibc
// learns from the first large block to keep up to 64 MiB a thread. Call it once, early.
void KeepLittleFreeMemory();

// Gives the whole free pages inside the heaps back to the system. Thread-safe. It walks the free lists under their
// locks and the pages fault in again when they are needed: for the time after large, rare work.
void ReturnFreeMemory();

}  // namespace df

#endif  // DELTAFOLD_BASE_HEAP_H_
