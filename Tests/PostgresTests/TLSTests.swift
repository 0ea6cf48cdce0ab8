import Foundation
import Logging
import Postgres
import Synchronization
import TestServers
import Testing

/// Goal: with `sslmode=verify-full` a service connects only to the server that the certificate names, and names the
/// fault otherwise. Method: a PostgreSQL of our own that takes TLS only, with certificates of an authority made for the
/// test.
@Suite(.timeLimit(.minutes(3))) struct TLSTests {
    private static let password = "correct-horse"

    private func url(_ server: TLSServer, _ query: String) -> String {
        "postgresql://postgres:\(Self.password)@\(TLSServer.name):\(server.port)/makegood?hostaddr=127.0.0.1&\(query)"
    }

    /// The error of a connection attempt, and the line that a person reads; nil if it works and is encrypted.
    private func failure(_ url: String) async -> (error: PostgresError, line: String)? {
        let lines = Lines()
        let database = Database(
            PostgresConfiguration(url: url, applicationName: "makegood-tests", reconnectWait: .seconds(20)),
            connections: 1, logger: lines.logger)
        do throws(PostgresError) {
            let isEncrypted = try await database.run(
                oneText("select (ssl and version >= 'TLSv1.2')::text from pg_stat_ssl where pid = pg_backend_pid()"))
            #expect(isEncrypted == ["true"])
            await database.close()
            return nil
        } catch {
            await database.close()
            return (error, lines.text)
        }
    }

    @Test func onlyTheServerThatTheCertificateNames() async throws {
        try await TLSServer.run(.postgres) { server in
            let untrusted = PostgresError.misconfigured(
                sqlState: "08001", statement: "connect with TLS (sslmode, sslrootcert and host of the URL)")
            let verified = url(server, "sslmode=verify-full&sslrootcert=\(server.authority)")
            #expect(await failure(verified) == nil)

            func expectUntrusted(_ url: String, _ words: String) async {
                let failure = await failure(url)
                #expect(failure?.error == untrusted)
                #expect(failure?.line.contains(words) == true, "\(failure?.line ?? "")")
                #expect(failure?.line.contains(Self.password) == false)
            }
            // Another authority of the same name; none at all.
            await expectUntrusted(
                url(server, "sslmode=verify-full&sslrootcert=\(server.otherAuthority)"), "certificate verify failed")
            await expectUntrusted(
                url(server, "sslmode=verify-full&sslrootcert=\(server.authority).none"), "root certificate file")
            // Plain: pg_hba.conf takes TLS only, and the server refuses with a code.
            let plain = await failure(url(server, "sslmode=disable"))
            #expect(plain?.error == .misconfigured(sqlState: "28000", statement: "connect"))
            #expect(plain?.line.contains("28000") == true)

            // The right authority, another server.
            try server.present(certificateFor: "other.example")
            await expectUntrusted(verified, "does not match host name")
            try server.present(certificateFor: TLSServer.name)
            #expect(await failure(verified) == nil)
        }
    }

    /// The shared server speaks no TLS: a connection that requires TLS is not made without it.
    @Test func aServerWithoutTLSIsRefused() async throws {
        let server = try TestDatabase.serverURL
        let failure = await failure(server + (server.contains("?") ? "&" : "?") + "sslmode=require")
        #expect(
            failure?.error
                == .misconfigured(
                    sqlState: "08001", statement: "connect with TLS (sslmode, sslrootcert and host of the URL)"))
        #expect(failure?.line.contains("server does not support SSL") == true)
    }
}

/// The lines that a logger got, metadata included.
private final class Lines: Sendable {
    private struct Handler: LogHandler {
        let lines: Lines
        var metadata: Logger.Metadata = [:]
        var logLevel = Logger.Level.info
        subscript(metadataKey key: String) -> Logger.Metadata.Value? {
            get { metadata[key] }
            set { metadata[key] = newValue }
        }

        func log(event: LogEvent) {
            lines.stored.withLock { $0.append("\(event.message) \(event.metadata ?? [:])") }
        }
    }

    private let stored = Mutex<[String]>([])
    var text: String { stored.withLock { $0.joined(separator: "\n") } }
    var logger: Logger { Logger(label: "test") { _ in Handler(lines: self) } }
}
