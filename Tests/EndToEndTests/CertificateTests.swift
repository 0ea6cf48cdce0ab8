import AppStoreSimulator
import Foundation
import Logging
import Testing

extension EndToEnd {
    /// Which certificates are believed, and for how long.
    @Suite struct Certificates {
        /// Goal: roots are read anew without a restart. A root that is taken away is believed no more, although its
        /// chains are known by then. Nothing is lost by it (P17).
        /// Method: a purchase is granted; another root's certificate is put in the file, by the same name, and SIGHUP
        /// sent: the next purchase is rejected `untrusted_root`, and its client keeps it. The root is put back and
        /// SIGHUP sent: the next is granted, and the rejected one too after `support rejudge`.
        @Test func rootsAreReadAnewWithoutARestart() async throws {
            try await System.run { system in
                try await system.startAll()
                let sales = try await system.appStore.sell(3)
                system.owe(sales, to: "u1")
                #expect(try await system.submit(sales[0], user: "u1", wait: 20).state == "granted")
                let other = try AppStoreSimulator(logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
                try Data(other.rootCertificateDER).write(to: URL(filePath: "\(system.directory)/root.der"))
                try await system.reload()
                let refused = try await system.submit(sales[1], user: "u1", wait: 20)
                #expect(refused.state == "rejected")
                #expect(refused.reason == "untrusted_root")
                #expect(refused.safeToFinish == false)
                // This writes the files as they were.
                try system.configure { _ in }
                try await system.reload()
                #expect(try await system.submit(sales[2], user: "u1", wait: 20).state == "granted")
                let done = try await system.command(
                    "support", "rejudge", "--app", "game", "--reason", "untrusted_root")
                #expect(done.contains("1 receipt is judged again"))
                try await system.settleDebts()
            }
        }

        /// Goal: a responder that does not answer rejects nobody, and delays only apps that require its answer (P16).
        /// Method: with `ocsp: hard` and a responder that only fails, ten purchases stay open with the reason; none is
        /// safe to finish, none is granted. The setting is changed to `soft`: all are granted without further help.
        @Test func aResponderWithoutAnAnswerRejectsNobody() async throws {
            try await System.run { system in
                try system.appStore.store.set(ResponderRequest(manner: .error))
                try system.configureGame { $0.ocsp = "hard" }
                try await system.startAll()
                let sales = try await system.appStore.sell(10)
                system.owe(sales, to: "u1")
                for sale in sales {
                    let answer = try await system.submit(sale, user: "u1", wait: 1)
                    #expect(answer.status == 202)
                    #expect(answer.safeToFinish == false)
                }
                try await system.wait("every purchase to be tried") {
                    try await system.texts("select distinct state || ' ' || coalesce(reason, '-') from receipts")
                        == ["received certificate_status_unknown"]
                }
                #expect(try await system.count("select count(*) from grants") == 0)
                try system.configureGame { $0.ocsp = "soft" }
                try await system.reload()
                try await system.settleDebts()
            }
        }

        /// Goal: a purchase that a revoked certificate signed is rejected for that reason, and kept: the revocation may
        /// be taken back.
        /// Method: with `ocsp: soft` the responder calls the leaf revoked: a purchase is rejected
        /// `certificate_revoked`, not safe to finish. The setting is taken away: `support rejudge` grants it.
        @Test func aRevokedCertificateRejectsAndIsReopened() async throws {
            try await System.run { system in
                try system.appStore.store.set(ResponderRequest(leaf: .revoked))
                try system.configureGame { $0.ocsp = "soft" }
                try await system.startAll()
                let sale = try await system.appStore.sell()
                system.owe(sale, to: "u1")
                let refused = try await system.submit(sale, user: "u1", wait: 20)
                #expect(refused.state == "rejected")
                #expect(refused.reason == "certificate_revoked")
                #expect(refused.safeToFinish == false)
                try system.configureGame { $0.ocsp = nil }
                try await system.reload()
                _ = try await system.command(
                    "support", "rejudge", "--app", "game", "--reason", "certificate_revoked")
                try await system.settleDebts()
            }
        }
    }
}
