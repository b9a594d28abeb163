// What the kernel tells about another process of this machine.
#pragma once

namespace khorovod {

// The process behind a pidfd as this process's namespace numbers it; 0 if it cannot be seen.
int pid_of(int pidfd);

// Its state as /proc has it ('R', 'S', 'D', 'T', ...); '?' if it is not known.
char process_state(int pid);

}  // namespace khorovod
