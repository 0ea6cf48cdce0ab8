import Logging
import Synchronization

/// Keeps what was logged.
final class LogLines: Sendable {
    private let all = Mutex<[(level: Logger.Level, metadata: Logger.Metadata)]>([])

    var logger: Logger { Logger(label: "test") { _ in Handler(lines: self) } }

    func take() -> [(level: Logger.Level, metadata: Logger.Metadata)] {
        all.withLock { lines in
            defer { lines = [] }
            return lines
        }
    }

    private struct Handler: LogHandler {
        let lines: LogLines
        var metadata: Logger.Metadata = [:]
        var logLevel = Logger.Level.trace

        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }

        func log(event: LogEvent) {
            lines.all.withLock { $0.append((event.level, event.metadata ?? [:])) }
        }
    }
}
