import Foundation
import TestServers
import Testing

@testable import Encoding
@testable import Intake
@testable import Ledger

/// Goal: one token, one user, per app (S3-58). Method: real HTTP, then the rows.
@Suite(.migratedDatabase, .serialized, .timeLimit(.minutes(3))) struct TokenTests {
    private static func user() -> String { "u-\(UUID().uuidString.prefix(8))" }

    @Test("a token that the app uses already is registered once; another user's is refused, and nobody learns whose")
    func registering() async throws {
        try await RunningIntake.run { intake in
            let (user, stranger, token) = (Self.user(), Self.user(), UUID())
            let first = try await intake.send("PUT", "/v1/users/\(user)/tokens/\(token)")
            #expect(first.status == 201 && first["source"] == .string("registered"))
            #expect(first["token"] == .string(token.uuidString.lowercased()))
            #expect(
                try await intake.send("PUT", "/v1/users/\(user)/tokens/\(token.uuidString.lowercased())").status == 200)
            let taken = try await intake.send("PUT", "/v1/users/\(stranger)/tokens/\(token)")
            #expect(taken.status == 409 && taken["code"] == .string("token_taken") && !taken.text.contains(user))
            #expect(try await intake.count("select count(*) from user_tokens where user_id = '\(stranger)'") == 0)
            // The account has the tokens of the users that became part of it.
            let account = Self.user()
            try await intake.execute(
                "insert into merges (app_id, user_id, into_user_id) values ('game', '\(user)', '\(account)')")
            #expect(try await intake.send("PUT", "/v1/users/\(account)/tokens/\(token)").status == 200)
            // Another app has its own tokens.
            let other = try await intake.send(
                "PUT", "/v1/users/\(stranger)/tokens/\(token)?appId=other", key: IntakeFixture.bothAppsKey)
            #expect(other.status == 201)
            let noApp = try await intake.send(
                "PUT", "/v1/users/\(stranger)/tokens/\(token)", key: IntakeFixture.bothAppsKey)
            #expect(noApp.status == 422 && noApp["field"] == .string("appId"))
        }
    }

    @Test("a token that is no UUID, a user that is none, and one token too many")
    func badInput() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            for token in ["no-uuid", "12345678-1234-1234-1234-12345678901", "%00"] {
                let answer = try await intake.send("PUT", "/v1/users/\(user)/tokens/\(token)")
                #expect(answer.status == 400 && answer["field"] == .string("token"), "\(token)")
            }
            for id in ["%00", String(repeating: "u", count: 257)] {
                let answer = try await intake.send("PUT", "/v1/users/\(id)/tokens/\(UUID())")
                #expect(answer.status == 400 && answer["field"] == .string("id"), "\(id)")
            }
            let encoded = try await intake.send("PUT", "/v1/users/a%2Fb%20%C3%A9/tokens/\(UUID())")
            #expect(encoded.status == 201)
            #expect(try await intake.count("select count(*) from user_tokens where user_id = 'a/b é'") == 1)
            try await intake.execute(
                """
                insert into user_tokens (app_id, token, user_id, source)
                select 'game', gen_random_uuid(), '\(user)', 'registered'
                from generate_series(1, \(Statements.tokensPerUserMax))
                """)
            let tooMany = try await intake.send("PUT", "/v1/users/\(user)/tokens/\(UUID())")
            #expect(tooMany.status == 409 && tooMany["code"] == .string("too_many_tokens"))
        }
    }

    @Test("a user in a path: what is no UTF-8 is nobody, and never somebody else")
    func decoding() {
        for (path, user) in [
            ("u1", "u1"), ("a%2Fb%20%c3%A9", "a/b é"), ("%25", "%"), ("", ""), ("%00", "\0"), ("é", "é"), ("+", "+"),
            ("%ff", nil), ("%c3%28", nil), ("%c3", nil), ("%", nil), ("%4", nil), ("a%g0", nil), ("%+1", nil),
            ("%é", nil),
        ] as [(String, String?)] {
            #expect(path.percentDecoded == user, "\(path)")
        }
    }

    @Test("P4: the issued token is one, however often and however concurrently it is asked for")
    func issuing() async throws {
        try await RunningIntake.run { intake in
            let user = Self.user()
            let tokens = try await withThrowingTaskGroup(of: JSONValue?.self) { group in
                for _ in 0..<30 {
                    group.addTask {
                        let answer = try await intake.send("POST", "/v1/users/\(user)/token")
                        #expect(answer.status == 200 || answer.status == 201)
                        return answer["token"]
                    }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(tokens.allSatisfy { $0 != nil && $0 == tokens[0] })
            #expect(try await intake.count("select count(*) from user_tokens where user_id = '\(user)'") == 1)
            let others = try await intake.send("POST", "/v1/users/\(Self.user())/token")
            #expect(others.status == 201 && others["token"] != tokens[0])
        }
    }

    @Test("a user's own token reads that user's alone, and claims none; a key of another app does nothing here")
    func access() async throws {
        try await TestGateway.run { intake, gateway in
            let (user, stranger) = (Self.user(), Self.user())
            let own = try await intake.send("POST", "/v1/users/\(user)/token", key: gateway.token(user))
            #expect(own.status == 201)
            let foreign = try await intake.send("POST", "/v1/users/\(stranger)/token", key: gateway.token(user))
            #expect(foreign.status == 404)
            let claimed = try await intake.send("PUT", "/v1/users/\(user)/tokens/\(UUID())", key: gateway.token(user))
            #expect(claimed.status == 403 && claimed["code"] == .string("needs_key"))
            let support = try await intake.send("POST", "/v1/users/\(user)/token", key: IntakeFixture.supportKey)
            #expect(support.status == 403)
            #expect(try await intake.send("POST", "/v1/users/\(user)/token?appId=other").status == 403)
            #expect(try await intake.send("GET", "/v1/users/\(user)/token").status == 405)
            #expect(try await intake.count("select count(*) from user_tokens where user_id = '\(stranger)'") == 0)
        }
    }
}
