import Crypto
import Foundation
import Testing

@testable import AppStore

// Goal: a forgery that is sent again and again is checked once, and no good data is refused because of it. Method:
// chains that the test makes fail, counted; and verifiers of two authorities.

@Suite struct KnownFailuresTests {
    /// Presents the text once more; returns whether its chain was built, and the reason for its refusal.
    private static func present(
        _ text: String, to failures: KnownFailures, _ reason: VerificationFailure.Reason
    ) async -> (isBuilt: Bool, said: VerificationFailure.Reason?) {
        var isBuilt = false
        do throws(VerificationFailure) {
            let _: CertificateChain<P256.Signing.PublicKey> = try await failures.chain(of: text.utf8) {
                () throws(VerificationFailure) in
                isBuilt = true
                throw VerificationFailure(reason)
            }
            return (isBuilt, nil)
        } catch {
            return (isBuilt, error.reason)
        }
    }

    @Test(arguments: VerificationFailure.Reason.allCases)
    func `an error of the certificates alone is built once, every other error each time`(
        _ reason: VerificationFailure.Reason
    ) async {
        let failures = KnownFailures()
        let isRemembered = [.chainLength, .certificate, .untrustedRoot, .missingOID].contains(reason)
        for round in 0..<3 {
            let (isBuilt, said) = await Self.present("a", to: failures, reason)
            #expect(said == reason)
            #expect(isBuilt == (round == 0 || !isRemembered))
        }
        #expect(await Self.present("b", to: failures, reason).isBuilt, "another header")
    }

    @Test func `as many as two generations are remembered, and then the oldest are dropped`() async {
        let failures = KnownFailures(limit: 2)
        for text in ["a", "b", "c"] { _ = await Self.present(text, to: failures, .untrustedRoot) }
        for text in ["a", "b", "c"] { #expect(await !Self.present(text, to: failures, .untrustedRoot).isBuilt) }
        for text in ["d", "e"] { _ = await Self.present(text, to: failures, .untrustedRoot) }
        #expect(await Self.present("a", to: failures, .untrustedRoot).isBuilt)
    }

    @Test func `a verifier with another root believes what this one has refused, and dates are judged each time`()
        async throws
    {
        let (authority, other) = (try TestAuthority(), try TestAuthority())
        let good = try authority.sign(Payload.transaction())
        let (strange, own) = (try other.verifier(), try authority.verifier())
        for _ in 0..<2 { #expect(await strange.refusal(of: good) == .untrustedRoot) }
        await #expect(throws: VerificationFailure(.expired)) {
            try await own.transaction(good, at: .init(timeIntervalSince1970: 0))
        }
        #expect(try await own.transaction(good).transactionId == "2000000000000001")
        #expect(await strange.refusal(of: good) == .untrustedRoot)
    }
}
