import Crypto
import CryptoExtras
import Foundation
import SwiftASN1
import Synchronization
import X509

/// The folder that makes a simulator the same App Store after a restart.
///
/// The folder holds:
/// - `root.der`, for a configuration's `rootCertificates`;
/// - `key.p8` and `credentials.json`, for a configuration's `serverApi` and `verifyReceipt`;
/// - the certificates and keys as PEM (0600);
/// - `identity.json`, the id prefix; written last: a folder with this file is complete;
/// - `receipt-*.pem`, the certificates and key of receipts, made with the first receipt;
/// - `counter`, the first transaction number that is not reserved;
/// - `ledger.jsonl`, one line for each thing that happened.
///
/// Several simulators may share one folder. A simulator makes the folder and reserves numbers under a lock on `lock`,
/// and appends whole lines to the ledger. Each simulator reads the others' sales at its next start.
struct StateDirectory: Sendable {
    /// The part of the folder that makes ids of this store unique.
    struct Identity: Codable {
        /// Six random digits before every transaction id; the first is not 0.
        let prefix: String
    }

    let path: String

    /// Everything a simulator needs to know about itself.
    struct Contents {
        let authority: CertificateAuthority
        let credentials: Credentials
        let identity: Identity
    }

    /// Reads the folder, or makes it at the first start. A leaf that ends within 30 days is replaced.
    func open() throws(SimulatorError) -> Contents {
        do {
            try FileManager.default.createDirectory(
                atPath: path, withIntermediateDirectories: true, attributes: [.posixPermissions: 0o700])
        } catch {
            throw .state("cannot make \(path)")
        }
        return try withLock { () throws(SimulatorError) in
            if FileManager.default.fileExists(atPath: file("identity.json")) {
                return try load()
            }
            let contents = try Self.make()
            try save(contents)
            return contents
        }
    }

    /// Fresh certificates, credentials and identity, from the system's random numbers.
    static func make() throws(SimulatorError) -> Contents {
        var random = SystemRandomNumberGenerator()
        let letters = Array("ABCDEFGHJKLMNPQRSTUVWXYZ23456789")
        let hexadecimal = Array("0123456789abcdef")
        let credentials = Credentials(
            issuerId: UUID().uuidString.lowercased(),
            keyId: String((0..<10).map { _ in letters.randomElement(using: &random)! }),
            privateKeyPEM: P256.Signing.PrivateKey().pemRepresentation,
            sharedSecret: String((0..<32).map { _ in hexadecimal.randomElement(using: &random)! })
        )
        let identity = Identity(prefix: String(Int.random(in: 100_000...999_999, using: &random)))
        return Contents(authority: try .make(), credentials: credentials, identity: identity)
    }

    /// The certificates and the key that sign receipts, made at the first call for this folder.
    func receiptAuthority(below authority: CertificateAuthority) throws(SimulatorError) -> ReceiptSigner {
        try withLock { () throws(SimulatorError) in
            // The key is written last: if it exists, the three files are complete.
            guard FileManager.default.fileExists(atPath: file("receipt-leaf.key.pem")) else {
                let made = try ReceiptSigner.make(below: authority, keys: .make())
                try write("receipt-intermediate.pem", pem(made.intermediate))
                try write("receipt-leaf.pem", pem(made.leaf))
                try write("receipt-leaf.key.pem", Data(made.leafKey.pemRepresentation.utf8))
                return made
            }
            do {
                return try ReceiptSigner(
                    root: authority.root,
                    intermediate: try Certificate(pemEncoded: text("receipt-intermediate.pem")),
                    leaf: try Certificate(pemEncoded: text("receipt-leaf.pem")),
                    leafKey: try _RSA.Signing.PrivateKey(pemRepresentation: text("receipt-leaf.key.pem")))
            } catch let error as SimulatorError {
                throw error
            } catch {
                throw .authority("the files receipt-*.pem in \(path) are damaged; remove them to make new ones")
            }
        }
    }

    /// Reserves the next `count` transaction numbers for the caller alone, for ever (synced before it returns).
    func reserve(_ count: Int) throws(SimulatorError) -> Range<Int> {
        try withLock { () throws(SimulatorError) in
            var first = 1
            if FileManager.default.fileExists(atPath: file("counter")) {
                let text = try String(decoding: read("counter"), as: UTF8.self)
                guard let stored = Int(text.trimmingCharacters(in: .whitespacesAndNewlines)), stored > 0 else {
                    throw .state("counter is damaged")
                }
                first = stored
            }
            try write("counter", Data("\(first + count)\n".utf8))
            return first..<first + count
        }
    }

    /// The lines of the ledger; a last line without its end (a crash while writing) is left out.
    func ledgerLines() throws(SimulatorError) -> [Data] {
        guard FileManager.default.fileExists(atPath: file("ledger.jsonl")) else { return [] }
        let data: Data
        do {
            data = try Data(contentsOf: URL(fileURLWithPath: file("ledger.jsonl")), options: .alwaysMapped)
        } catch {
            throw .state("cannot read ledger.jsonl")
        }
        guard let end = data.lastIndex(of: UInt8(ascii: "\n")) else { return [] }
        return data[..<end].split(separator: UInt8(ascii: "\n"))
    }

    /// Opens the ledger for appending, at the start of a line.
    func openLedger() throws(SimulatorError) -> LedgerFile {
        let descriptor = Foundation.open(file("ledger.jsonl"), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { throw .state("cannot open ledger.jsonl") }
        var last = UInt8(ascii: "\n")
        let end = lseek(descriptor, 0, SEEK_END)
        if end > 0 { _ = pread(descriptor, &last, 1, end - 1) }
        return LedgerFile(descriptor: descriptor, isTorn: last != UInt8(ascii: "\n"))
    }

    private func load() throws(SimulatorError) -> Contents {
        do {
            let decoder = JSONDecoder()
            let identity = try decoder.decode(Identity.self, from: read("identity.json"))
            let credentials = try decoder.decode(Credentials.self, from: read("credentials.json"))
            var authority = CertificateAuthority(
                root: try Certificate(pemEncoded: text("root.pem")),
                rootKey: try P384.Signing.PrivateKey(pemRepresentation: text("root.key.pem")),
                intermediate: try Certificate(pemEncoded: text("intermediate.pem")),
                intermediateKey: try P384.Signing.PrivateKey(pemRepresentation: text("intermediate.key.pem")),
                leaf: try Certificate(pemEncoded: text("leaf.pem")),
                leafKey: try P256.Signing.PrivateKey(pemRepresentation: text("leaf.key.pem"))
            )
            guard authority.leaf.publicKey == .init(authority.leafKey.publicKey) else {
                throw SimulatorError.authority("leaf.pem and leaf.key.pem do not belong together")
            }
            if authority.leaf.notValidAfter < Date() + 30 * 86_400 {
                authority = try authority.renewingLeaf()
                try saveLeaf(authority)
            }
            return Contents(authority: authority, credentials: credentials, identity: identity)
        } catch let error as SimulatorError {
            throw error
        } catch {
            throw .authority("the files in \(path) are damaged; remove the folder to start a new App Store")
        }
    }

    private func save(_ contents: Contents) throws(SimulatorError) {
        let authority = contents.authority
        try write("root.pem", pem(authority.root))
        try write("root.key.pem", Data(authority.rootKey.pemRepresentation.utf8))
        try write("root.der", Data(authority.chainDER()[2]), mode: 0o644)
        try write("intermediate.pem", pem(authority.intermediate))
        try write("intermediate.key.pem", Data(authority.intermediateKey.pemRepresentation.utf8))
        try saveLeaf(authority)
        try write("key.p8", Data(contents.credentials.privateKeyPEM.utf8))
        do {
            let encoder = JSONEncoder()
            encoder.outputFormatting = [.prettyPrinted, .sortedKeys]
            try write("credentials.json", encoder.encode(contents.credentials))
            try write("identity.json", encoder.encode(contents.identity))
        } catch let error as SimulatorError {
            throw error
        } catch {
            throw .state("cannot encode the credentials")
        }
    }

    private func saveLeaf(_ authority: CertificateAuthority) throws(SimulatorError) {
        try write("leaf.key.pem", Data(authority.leafKey.pemRepresentation.utf8))
        try write("leaf.pem", pem(authority.leaf))
    }

    private func pem(_ certificate: Certificate) throws(SimulatorError) -> Data {
        do {
            return Data(try certificate.serializeAsPEM().pemString.utf8)
        } catch {
            throw .authority("cannot serialise a certificate")
        }
    }

    private func file(_ name: String) -> String { "\(path)/\(name)" }

    private func text(_ name: String) throws(SimulatorError) -> String {
        String(decoding: try read(name), as: UTF8.self)
    }

    private func read(_ name: String) throws(SimulatorError) -> Data {
        guard let data = FileManager.default.contents(atPath: file(name)) else { throw .state("cannot read \(name)") }
        return data
    }

    /// Replaces a file whole: written beside it, synced, renamed over it.
    private func write(_ name: String, _ data: Data, mode: mode_t = 0o600) throws(SimulatorError) {
        let temporary = file(".\(name).new")
        let descriptor = Foundation.open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode)
        guard descriptor >= 0 else { throw .state("cannot write \(name)") }
        let written = LedgerFile.writeAll(descriptor, data) && fsync(descriptor) == 0
        close(descriptor)
        guard written, rename(temporary, file(name)) == 0 else { throw .state("cannot write \(name)") }
    }

    /// Runs `body` while no other simulator of this folder runs its own. Waits milliseconds: no simulator holds the
    /// lock longer.
    private func withLock<Value>(
        _ body: () throws(SimulatorError) -> Value
    ) throws(SimulatorError) -> Value {
        let descriptor = Foundation.open(file("lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { throw .state("cannot open lock") }
        // Closing the descriptor gives the lock back (flock(2)).
        defer { close(descriptor) }
        while flock(descriptor, LOCK_EX) != 0 {
            guard errno == EINTR else { throw .state("cannot lock") }
        }
        return try body()
    }
}

/// The ledger's file, open for appending; closed with its last owner.
final class LedgerFile: Sendable {
    private let descriptor: Int32
    /// The file ends inside a line: a crash, or a full disk.
    private let isTorn: Mutex<Bool>

    init(descriptor: Int32, isTorn: Bool) {
        self.descriptor = descriptor
        self.isTorn = Mutex(isTorn)
    }

    deinit {
        close(descriptor)
    }

    /// Appends whole lines. The lines survive a crash of the process, not of the machine: there is no fsync, because
    /// ids are safe without it (the counter is synced when ids are reserved).
    func append(_ lines: Data) throws(SimulatorError) {
        try isTorn.withLock { isTorn throws(SimulatorError) in
            // An empty line is skipped by the reader; without it the next line would be lost with the torn one.
            let written = Self.writeAll(descriptor, isTorn ? Data("\n".utf8) + lines : lines)
            isTorn = !written
            guard written else { throw .state("cannot write ledger.jsonl") }
        }
    }

    static func writeAll(_ descriptor: Int32, _ data: Data) -> Bool {
        data.withUnsafeBytes { buffer in
            var offset = 0
            while offset < buffer.count {
                let count = write(descriptor, buffer.baseAddress! + offset, buffer.count - offset)
                if count < 0 && errno == EINTR { continue }
                guard count > 0 else { return false }
                offset += count
            }
            return true
        }
    }
}
