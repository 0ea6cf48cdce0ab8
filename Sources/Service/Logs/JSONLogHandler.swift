import Encoding
import Foundation
package import Logging

/// A log line as one JSON object: `time`, `level`, `message`, `source`, and every key of the metadata beside them.
package struct JSONLogHandler: LogHandler {
    package var metadata: Logger.Metadata = [:]
    package var metadataProvider: Logger.MetadataProvider?
    package var logLevel: Logger.Level = .info
    private let write: @Sendable (String) -> Void

    package init(metadataProvider: Logger.MetadataProvider?, write: @escaping @Sendable (String) -> Void) {
        self.metadataProvider = metadataProvider
        self.write = write
    }

    /// Writes each line at once and whole.
    package static func standardError(metadataProvider: Logger.MetadataProvider?) -> JSONLogHandler {
        JSONLogHandler(metadataProvider: metadataProvider) { line in
            try? FileHandle.standardError.write(contentsOf: Data(line.utf8))
        }
    }

    package subscript(metadataKey key: String) -> Logger.Metadata.Value? {
        get { metadata[key] }
        set { metadata[key] = newValue }
    }

    package func log(event: LogEvent) {
        var all = metadata
        all.merge(metadataProvider?.get() ?? [:]) { $1 }
        all.merge(event.metadata ?? [:]) { $1 }
        let members: [JSONValue.Member] =
            [
                .init("time", .string(Date.now.formatted(Date.ISO8601FormatStyle(includingFractionalSeconds: true)))),
                .init("level", .string(event.level.rawValue)),
                .init("message", .string(event.message.description)),
                .init("source", .string(event.source)),
            ] + all.sorted { $0.key < $1.key }.map { .init($0.key, .string("\($0.value)")) }
        write(JSONValue.object(members).text + "\n")
    }
}
