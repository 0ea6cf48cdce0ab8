import AppStore
package import Foundation
import Glibc
import Synchronization

/// Feeds a reader mutated inputs for a time, and reports how the reader behaved.
///
/// For every input the reader must return within a time that follows from the input's size, and must believe only the
/// content of the corpus's genuine inputs. A trap ends the process; the input is then in a file. Every input follows
/// from the seed and its number.
package struct FuzzRun: Sendable {
    package struct Report: Sendable {
        package let parser: ParserProbe.Parser
        package internal(set) var inputs = 0
        package internal(set) var read = 0
        package internal(set) var believed = 0
        /// The inputs that took longest for their size, worst first: CPU time and bytes.
        package internal(set) var slowest: [(cpu: Duration, bytes: Int)] = []
        /// The rules that the reader broke; each input is in a file of its own.
        package internal(set) var failures: [String] = []
    }

    /// One core's time for one input: this much, and this much for each byte. A debug build takes some twenty times as
    /// long as a release build.
    private static let cpuMax: Duration = isDebug ? .seconds(2) : .milliseconds(100)
    private static let cpuPerByteMax: Duration = isDebug ? .microseconds(40) : .microseconds(2)
    /// The run ends when an input takes so many times as long as it may.
    private static let hangFactor = 20
    /// The run also ends when a reader waits so long, even if it uses no CPU time.
    private static let waitMax: Duration = .seconds(60)
    private static let failuresMax = 20

    private let corpus: FuzzCorpus
    private let seed: UInt64
    private let keep: URL

    /// - Parameter keep: the folder for inputs that a person must look at. The run creates the folder; it also holds
    ///   the file of the input that is being fed.
    package init(_ corpus: FuzzCorpus, seed: UInt64, keep: URL) throws {
        self.corpus = corpus
        self.seed = seed
        self.keep = keep
        try FileManager.default.createDirectory(at: keep, withIntermediateDirectories: true)
    }

    /// - Parameter time: wall time for the mutated inputs. The run feeds the inputs of the corpus first, however long
    ///   they take.
    package func run(_ parser: ParserProbe.Parser, for time: Duration) async throws -> Report {
        let entries = corpus.entries[parser] ?? []
        guard !entries.isEmpty else { throw FuzzCorpus.Unreadable(description: "the corpus has nothing for \(parser)") }
        var session = try Session(parser, probe: corpus.probe(), keep: keep, seed: seed)
        // The genuine inputs come first: they say what a reader may believe.
        for entry in entries.filter(\.isGenuine) + entries.filter({ !$0.isGenuine }) { await session.learn(entry) }
        var mutator = Mutator(parser, corpus: entries.map(\.bytes), seed: seed)
        let end = ContinuousClock.now + time
        while ContinuousClock.now < end, session.report.failures.count < Self.failuresMax {
            await session.feed(mutator.next())
        }
        session.end()
        return session.report
    }

    static func limit(of bytes: Int) -> Duration { cpuMax + cpuPerByteMax * bytes }

    /// The CPU time of this process so far: other programs on the machine do not count.
    static var cpuTime: Duration { .microseconds(clock()) }

    private static var isDebug: Bool {
        #if DEBUG
            true
        #else
            false
        #endif
    }

    /// One reader, the content that it may believe, and the file of the input that is being fed.
    private struct Session {
        var report: Report
        private let parser: ParserProbe.Parser
        private let probe: ParserProbe
        private let keep: URL
        /// The beginning of the names of this run's files.
        private let prefix: String
        private var genuine: Set<[UInt8]> = []
        private let current: CurrentInput

        init(_ parser: ParserProbe.Parser, probe: ParserProbe, keep: URL, seed: UInt64) throws {
            self.parser = parser
            self.probe = probe
            self.keep = keep
            prefix = "\(parser.rawValue)-\(seed)"
            report = Report(parser: parser)
            current = try CurrentInput(keep.appending(path: "\(prefix)-current").path)
        }

        /// Feeds an input of the corpus. The reader must believe a genuine one; its content may then be believed again.
        mutating func learn(_ entry: FuzzCorpus.Entry) async {
            let outcome = await timed(entry.bytes)
            switch outcome {
            case .believed(let content) where entry.isGenuine: genuine.insert(content)
            case .believed where !isKnown(outcome): fail("\(entry.name) is believed", entry.bytes)
            case .broken(let rule): fail("\(entry.name): \(rule)", entry.bytes)
            default: if entry.isGenuine { fail("\(entry.name) is not believed", entry.bytes) }
            }
        }

        mutating func feed(_ bytes: [UInt8]) async {
            let outcome = await timed(bytes)
            switch outcome {
            case .refused: break
            case .read: report.read += 1
            case .believed:
                report.believed += 1
                if !isKnown(outcome) { fail("believed what nobody signed", bytes) }
            case .broken(let rule): fail(rule, bytes)
            }
        }

        mutating func end() {
            trimSlowest()
            current.remove()
        }

        private func isKnown(_ outcome: ParserProbe.Outcome) -> Bool {
            if case .believed(let content) = outcome { genuine.contains(content) } else { false }
        }

        private mutating func timed(_ bytes: [UInt8]) async -> ParserProbe.Outcome {
            current.begin(bytes)
            let start = FuzzRun.cpuTime
            let outcome = await probe.feed(bytes, to: parser)
            let cpu = FuzzRun.cpuTime - start
            current.finish()
            report.inputs += 1
            let share = cpu / FuzzRun.limit(of: bytes.count)
            if share > 1 { fail("slow: \(bytes.count) bytes took \(cpu)", bytes) }
            report.slowest.append((cpu, bytes.count))
            if report.slowest.count > 64 { trimSlowest() }
            return outcome
        }

        private mutating func trimSlowest() {
            report.slowest.sort { $0.cpu / FuzzRun.limit(of: $0.bytes) > $1.cpu / FuzzRun.limit(of: $1.bytes) }
            report.slowest.removeLast(max(0, report.slowest.count - 3))
        }

        /// Writes the input to a new file. Files of earlier runs stay, even with the same seed: their corpus or program
        /// may have been another.
        private mutating func fail(_ what: String, _ bytes: [UInt8]) {
            var number = report.failures.count
            var file = keep.appending(path: "\(prefix)-\(number)")
            while FileManager.default.fileExists(atPath: file.path) {
                number += 1
                file = keep.appending(path: "\(prefix)-\(number)")
            }
            try? Data(bytes).write(to: file)
            report.failures.append("\(what): \(file.lastPathComponent)")
        }
    }

    /// When an input has taken far too long. CPU time decides, because other programs do not use it up; the clock
    /// decides too, because a reader that waits for ever uses no CPU time.
    struct Deadline {
        private let cpu: Duration
        private let time: SuspendingClock.Instant

        init(bytes: Int, cpu: Duration, now: SuspendingClock.Instant) {
            let limit = FuzzRun.limit(of: bytes) * FuzzRun.hangFactor
            self.cpu = cpu + limit
            time = now + max(limit, FuzzRun.waitMax)
        }

        func isOver(cpu: Duration, now: SuspendingClock.Instant) -> Bool { cpu > self.cpu || now > time }
    }

    /// The file that holds the input being fed, and so stays after a trap. A thread watches the deadline.
    private final class CurrentInput: Sendable {
        private let path: String
        private let descriptor: Int32
        /// The deadline of the input that is being fed; nil between two inputs.
        private let deadline = Mutex<Deadline?>(nil)
        private let isOver = Atomic(false)

        init(_ path: String) throws {
            self.path = path
            descriptor = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0o600)
            guard descriptor >= 0 else { throw FuzzCorpus.Unreadable(description: "\(path) cannot be written") }
            Thread.detachNewThread { [self] in
                while !isOver.load(ordering: .relaxed) {
                    usleep(200_000)
                    guard let deadline = deadline.withLock({ $0 }), deadline.isOver(cpu: FuzzRun.cpuTime, now: .now)
                    else { continue }
                    let line = "hang: \(path)\n"
                    _ = line.withCString { write(2, $0, strlen($0)) }
                    _exit(3)
                }
                close(descriptor)
            }
        }

        func begin(_ bytes: [UInt8]) {
            _ = bytes.withUnsafeBytes { pwrite(descriptor, $0.baseAddress, $0.count, 0) }
            _ = ftruncate(descriptor, bytes.count)
            deadline.withLock { $0 = Deadline(bytes: bytes.count, cpu: FuzzRun.cpuTime, now: .now) }
        }

        func finish() { deadline.withLock { $0 = nil } }

        func remove() {
            isOver.store(true, ordering: .relaxed)
            unlink(path)
        }
    }
}
