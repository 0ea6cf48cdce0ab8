import Foundation
import Postgres
import Purchases
import TestRandom
import Testing

@testable import Encoding
@testable import Ledger

/// Goal: a header that several proofs share is stored once, and every proof is read back verbatim, whichever process
/// stored it and whatever happens to the header. Method: the real insert and fetch statements.
@Suite("Headers that proofs share")
struct ProofHeadersTests {
    private static func header(_ name: Character, bytes: Int = 3000) -> String {
        String(repeating: name, count: bytes) + "."
    }

    private static func submission(_ payload: String) -> Submission {
        Submission(appID: "game", userID: "u1", proof: .signedTransaction(payload))
    }

    @Test("a header is stored once, its proofs are read back verbatim and are what was posted")
    func sharedInTheLedger() async throws {
        try await LedgerLab.with { lab in
            let posted: [Submission] = (1...10).map { Self.submission(Self.header("h") + "\($0).s") }
            for submission in posted { #expect(try await lab.ledger.insert(submission)) }
            let other = Self.submission(Self.header("o") + "1.s")
            #expect(try await lab.ledger.insert(other))
            #expect(try await lab.number("select count(*) from proof_headers") == 1)
            let parts = try await lab.number("select count(*) from stored_payloads where header_sha256 is not null")
            #expect(parts == posted.count + 1 - ProofHeaders.occurrencesMin)
            #expect(try await lab.number("select max(length(body)) from stored_payloads") > 3000)
            for submission in [other] + posted {
                #expect(try await lab.ledger.fetch(submission.receiptID)?.proof == submission.proof)
            }
            #expect(try await lab.number("select count(*) from changed_proofs(3600)") == 0)
        }
    }

    @Test("a header that is missing makes its proofs missing, not shorter; the next post stores it again")
    func missingHeader() async throws {
        try await LedgerLab.with { lab in
            let posted = (1...5).map { Self.submission(Self.header("h") + "\($0).s") }
            for submission in posted { #expect(try await lab.ledger.insert(submission)) }
            try await lab.run("delete from proof_headers")
            #expect(try await lab.ledger.fetch(posted[4].receiptID)?.hasPayload == false)
            #expect(try await lab.ledger.fetch(posted[0].receiptID)?.proof == posted[0].proof)
            #expect(try await lab.number("select count(*) from changed_proofs(3600)") == 2, "and it is noticed")
            // Retention does not keep half a proof either: it stops before it drops the day.
            await #expect(throws: PostgresError.self) {
                try await lab.run(
                    "select keep_payloads('payloads_default', array(select id from receipts), array[]::text[])")
            }
            #expect(try await lab.ledger.insert(Self.submission(Self.header("h") + "6.s")))
            #expect(try await lab.ledger.fetch(posted[4].receiptID)?.proof == posted[4].proof)
        }
    }

    @Test("retention keeps whole proofs")
    func keptWhole() async throws {
        try await LedgerLab.with { lab in
            let posted = (1...6).map { Self.submission(Self.header("h") + "\($0).s") }
            for submission in posted { #expect(try await lab.ledger.insert(submission)) }
            try await lab.run(
                "select keep_payloads('payloads_default', array(select id from receipts), array[]::text[])")
            #expect(try await lab.number("select count(*) from kept_payloads") == 6)
            try await lab.run("delete from stored_payloads")
            for submission in posted {
                #expect(try await lab.ledger.fetch(submission.receiptID)?.proof == submission.proof)
            }
        }
    }

    @Test("what is split joins to what was posted, for any proof")
    func splitJoins() {
        var random = SeededRandom(announcing: "ProofHeadersTests.splitJoins")
        let sharing = ProofHeaders()
        for _ in 0..<2000 {
            let length = [0, 10, 255, 256, 257, 3000, 16_384, 16_385].randomElement(using: &random) ?? 0
            let name = Character(UnicodeScalar(UInt8.random(in: 97...101, using: &random)))
            let payload =
                String(repeating: name, count: length)
                + [".x.y", ".", "", "..", ".\(length)"][Int.random(in: 0..<5, using: &random)]
            let (body, header) = sharing.split(.signedTransaction(payload))
            #expect((header?.text ?? "") + body == payload)
            if let header { #expect(ProofHeaders.bytes.contains(header.text.utf8.count - 1)) }
        }
        #expect(sharing.split(.receipt(Self.header("h") + "1.s")).header == nil)
        #expect(sharing.split(.identifier).body == "")
    }

    @Test("forged proofs cannot fill a table: each further header must come more often, and purchases' own stay shared")
    func bounded() {
        let sharing = ProofHeaders()
        func post(_ number: Int) -> ProofHeaders.Header? {
            sharing.split(.signedTransaction("\(number)" + Self.header("h", bytes: 300) + "b.s")).header
        }
        func posts(_ number: Int, _ count: Int) -> ProofHeaders.Header? {
            (0..<count).map { _ in post(number) }.last ?? nil
        }
        for number in 0..<10_000 { #expect(post(number) == nil) }
        #expect(posts(10_000, ProofHeaders.occurrencesMin) != nil)
        let shared = (0..<100).filter { posts($0, ProofHeaders.occurrencesMin) != nil }
        #expect(shared.count == ProofHeaders.few)
        // The header of Apple's new certificates comes again and again, among forgeries.
        for round in 0..<40 {
            for number in 0..<200 { _ = post(20_000 + round * 200 + number) }
            for _ in 0..<20 { _ = post(-1) }
        }
        #expect(post(-1) != nil)
        #expect(post(10_000) != nil, "what purchases have is not pushed out")
    }
}
