import Foundation
import Glibc

/// A shell that removes everything that is left when this process is gone, however it ended. The shell reads a pipe
/// whose other end only this process holds open. It kills processes by their ids, stops servers and removes their
/// directories.
///
/// PR_SET_PDEATHSIG does not serve: the kernel sends that signal when the thread that started the child ends, and the
/// threads of a Swift program come and go.
final class ProcessReaper: Sendable {
    static let shared = ProcessReaper()

    private let pipe: Int32

    private init() {
        var ends: [Int32] = [0, 0]
        Glibc.pipe(&ends)
        for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
        var actions = posix_spawn_file_actions_t()
        posix_spawn_file_actions_init(&actions)
        posix_spawn_file_actions_adddup2(&actions, ends[0], 0)
        posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0)
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0)
        for descriptor in RunningProcess.inheritable { posix_spawn_file_actions_addclose(&actions, descriptor) }
        // For root, `deploy/local` keeps the database elsewhere, behind a link.
        let script = """
            trap '' HUP INT TERM
            ids=' ' roots=' '
            while read -r word name; do
                case $word in
                    add) ids="$ids$name " ;;
                    remove) ids="${ids%% $name *} ${ids#* $name }" ;;
                    serve) roots="$roots$name " ;;
                    removed) roots="${roots%% $name *} ${roots#* $name }" ;;
                esac
            done
            for id in $ids; do kill -9 "$id"; done
            for root in $roots; do
                "$root/deploy/local" down
                [ ! -L "$root/.local/postgres" ] || rm -rf "$(readlink "$root/.local/postgres")"
                rm -rf "$root"
            done
            """
        var attributes = posix_spawnattr_t()
        posix_spawnattr_init(&attributes)
        posix_spawnattr_setflags(&attributes, RunningProcess.newSession)
        let argv = RunningProcess.copy(["/bin/sh", "-c", script])
        var id: pid_t = 0
        posix_spawn(&id, "/bin/sh", &actions, &attributes, argv, environ)
        for pointer in argv { free(pointer) }
        posix_spawn_file_actions_destroy(&actions)
        posix_spawnattr_destroy(&attributes)
        close(ends[0])
        pipe = ends[1]
    }

    func add(id: pid_t) { tell("add \(id)\n") }
    func remove(id: pid_t) { tell("remove \(id)\n") }
    /// Registers a copy of `deploy/local` with its servers.
    func add(root: String) { tell("serve \(root)\n") }
    func remove(root: String) { tell("removed \(root)\n") }

    /// Writes a line shorter than PIPE_BUF, so that lines of several threads do not mix (pipe(7)).
    private func tell(_ line: String) {
        _ = line.withCString { write(pipe, $0, strlen($0)) }
    }
}
