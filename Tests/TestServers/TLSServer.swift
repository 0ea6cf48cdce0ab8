import Foundation

/// A PostgreSQL or RabbitMQ of the test's own that speaks TLS, with a certificate authority made by openssl.
///
/// A copy of deploy/local keeps the server beside itself. PostgreSQL takes about 3 s and refuses plain connections;
/// RabbitMQ takes about 10 s and has its TLS listener beside the plain one.
package struct TLSServer: Sendable {
    package enum Kind: String, Sendable {
        case postgres
        case rabbitMQ = "rabbitmq"
    }

    /// The name in the server's certificate, unless `present` changes it.
    package static let name = "localhost"

    /// The port with TLS.
    package let port: Int
    /// The port without TLS, for RabbitMQ.
    package let plainPort: Int
    private let kind: Kind
    private let root: String

    /// The PEM file of the authority that signed the server's certificate. The next one has the same name and did not
    /// sign it.
    package var authority: String { "\(root)/authority.pem" }
    package var otherAuthority: String { "\(root)/other-authority.pem" }

    package static func run(_ kind: Kind, _ body: (TLSServer) async throws -> Void) async throws {
        let root = FileManager.default.temporaryDirectory.appending(path: "makegood-tls-\(UUID().uuidString)").path
        do {
            let server = try start(kind, root)
            try await body(server)
        } catch {
            remove(root)
            throw error
        }
        remove(root)
    }

    /// From now on new connections see a certificate of the same authority for this name.
    package func present(certificateFor name: String) throws {
        try Self.makeCertificate(for: name, in: root)
        switch kind {
        case .postgres: try installInPostgres()
        // Erlang keeps what it has read for two minutes.
        case .rabbitMQ: try Self.local(root, "rabbitmqctl", "eval", "ssl:clear_pem_cache().")
        }
    }

    private static func start(_ kind: Kind, _ root: String) throws -> TLSServer {
        try FileManager.default.createDirectory(atPath: "\(root)/deploy", withIntermediateDirectories: true)
        try FileManager.default.copyItem(atPath: Program.deployLocal, toPath: "\(root)/deploy/local")
        for authority in ["authority", "other-authority"] {
            try openssl(
                root, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", "/CN=Makegood tests", "-keyout", "\(authority).key", "-out", "\(authority).pem")
        }
        try makeCertificate(for: name, in: root)
        let tlsPort = try local(root, "port").trimmingCharacters(in: .whitespacesAndNewlines)
        if kind == .rabbitMQ {
            let directory = "\(root)/.local/rabbitmq"
            try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
            try """
            listeners.ssl.1 = 127.0.0.1:\(tlsPort)
            ssl_options.cacertfile = \(root)/authority.pem
            ssl_options.certfile = \(root)/server.pem
            ssl_options.keyfile = \(root)/server.key

            """.write(toFile: "\(directory)/rabbitmq.conf", atomically: true, encoding: .utf8)
        }
        try local(root, "up", kind.rawValue)
        let variable = kind == .postgres ? "MAKEGOOD_POSTGRES_URL=" : "MAKEGOOD_AMQP_URL="
        let line = try local(root, "env").split(separator: "\n").first { $0.contains(variable) }
        guard let url = line?.split(separator: "=").last, let port = URLComponents(string: String(url))?.port else {
            throw Program.Failure(description: "deploy/local env names no port")
        }
        let server = TLSServer(
            port: kind == .postgres ? port : Int(tlsPort) ?? 0, plainPort: port, kind: kind, root: root)
        if kind == .postgres { try server.installInPostgres() }
        return server
    }

    private static func makeCertificate(for name: String, in root: String) throws {
        try "subjectAltName = DNS:\(name)\n".write(toFile: "\(root)/names", atomically: true, encoding: .utf8)
        try openssl(
            root, "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
            "/CN=\(name)", "-keyout", "server.key", "-out", "server.csr")
        try openssl(
            root, "x509", "-req", "-in", "server.csr", "-days", "2", "-CA", "authority.pem", "-CAkey", "authority.key",
            "-CAcreateserial", "-extfile", "names", "-out", "server.pem")
    }

    /// Writes the key and certificate. PostgreSQL requires its key in a file of its own user. When the tests run as
    /// root, that is another user, so PostgreSQL writes the files itself, in its data directory, where its shell
    /// commands run.
    private func installInPostgres() throws {
        func copy(_ text: String, to file: String) -> [String] {
            [
                "-c",
                """
                copy (select line from unnest(string_to_array($text$\(text)$text$, E'\\n')) line)
                to program 'umask 077; cat > \(file)'
                """,
            ]
        }
        let certificate = try String(contentsOfFile: "\(root)/server.pem", encoding: .utf8)
        let key = try String(contentsOfFile: "\(root)/server.key", encoding: .utf8)
        try Self.local(
            root,
            ["psql", "-q", "-v", "ON_ERROR_STOP=1"] + copy(certificate, to: "server.crt") + copy(key, to: "server.key")
                + copy("hostssl all all 127.0.0.1/32 trust", to: "pg_hba.conf")
                + ["-c", "alter system set ssl = on", "-c", "select pg_reload_conf()"])
    }

    // MARK: Programs

    private static func remove(_ root: String) {
        _ = try? local(root, "down")
        // Run as root, deploy/local keeps the database elsewhere, behind a link.
        let link = "\(root)/.local/postgres"
        if let elsewhere = try? FileManager.default.destinationOfSymbolicLink(atPath: link) {
            try? FileManager.default.removeItem(atPath: elsewhere)
        }
        try? FileManager.default.removeItem(atPath: root)
    }

    @discardableResult
    private static func local(_ root: String, _ arguments: String...) throws -> String { try local(root, arguments) }

    @discardableResult
    private static func local(_ root: String, _ arguments: [String]) throws -> String {
        try Program.run("\(root)/deploy/local", arguments, in: URL(filePath: root))
    }

    private static func openssl(_ root: String, _ arguments: String...) throws {
        try Program.run("openssl", arguments, in: URL(filePath: root))
    }
}
