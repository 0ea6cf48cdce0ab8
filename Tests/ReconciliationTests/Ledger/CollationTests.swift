import Encoding
import Testing

@testable import Ledger

/// Goal: a database works in any locale and after a move to another C library (F24), because no comparison and no index
/// depends on the rules of a language. Method: the catalogue of a migrated database.
@Suite(.timeLimit(.minutes(2))) struct CollationTests {
    @Test("F24: every text column of a table and every index of text compares by bytes")
    func bytes() async throws {
        try await LedgerLab.with { lab in
            let byLanguage = try await lab.texts(
                """
                select c.relname || '.' || a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
                where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p', 'i', 'I')
                  and c.relname not like 'schema_migrations%' and a.attnum > 0 and not a.attisdropped
                  and a.attcollation not in (0, 'pg_catalog."C"'::regcollation)
                order by 1
                """)
            #expect(byLanguage == [])
            let byBytes = try await lab.number(
                "select count(*) from pg_attribute where attcollation = 'pg_catalog.\"C\"'::regcollation and attrelid = 'grants'::regclass"
            )
            #expect(byBytes >= 10)
        }
    }
}
