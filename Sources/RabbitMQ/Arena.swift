import CRabbitMQ

/// Memory for the arguments of one call, from the library's own pool (amqp.h, amqp_pool_t). `withArena` frees the pool
/// at its end, so the caller must keep nothing of it.
@unsafe struct Arena {
    @unsafe enum Value {
        case flag(Bool)
        case number(Int64)
        case text(String)
        case table(amqp_table_t)
    }

    let pool: UnsafeMutablePointer<amqp_pool_t>

    func bytes(_ string: String) -> amqp_bytes_t {
        let utf8 = Array(string.utf8)
        var copy = unsafe amqp_bytes_t()
        // amqp.h, amqp_pool_alloc_bytes: `len` bytes that live as long as the pool; NULL if out of memory or empty.
        unsafe amqp_pool_alloc_bytes(pool, utf8.count, &copy)
        if let target = unsafe copy.bytes { unsafe target.copyMemory(from: utf8, byteCount: utf8.count) }
        return unsafe copy
    }

    func table(_ entries: [(String, Value)]) -> amqp_table_t {
        guard unsafe !entries.isEmpty else { return unsafe amqp_empty_table }
        // amqp.h, amqp_pool_alloc: aligned for any struct, lives as long as the pool.
        let memory = unsafe amqp_pool_alloc(pool, entries.count * MemoryLayout<amqp_table_entry_t>.stride)
        guard let memory = unsafe memory else { return unsafe amqp_empty_table }
        let places = unsafe memory.bindMemory(to: amqp_table_entry_t.self, capacity: entries.count)
        for index in unsafe entries.indices {
            let (key, value) = unsafe entries[index]
            var entry = unsafe amqp_table_entry_t()
            unsafe entry.key = bytes(key)
            // amqp.h, amqp_field_value_t: the kind says which member of the union is set.
            switch unsafe value {
            case .flag(let flag):
                unsafe entry.value.kind = UInt8(AMQP_FIELD_KIND_BOOLEAN.rawValue)
                unsafe entry.value.value.boolean = flag ? 1 : 0
            case .number(let number):
                unsafe entry.value.kind = UInt8(AMQP_FIELD_KIND_I64.rawValue)
                unsafe entry.value.value.i64 = number
            case .text(let text):
                unsafe entry.value.kind = UInt8(AMQP_FIELD_KIND_UTF8.rawValue)
                unsafe entry.value.value.bytes = bytes(text)
            case .table(let table):
                unsafe entry.value.kind = UInt8(AMQP_FIELD_KIND_TABLE.rawValue)
                unsafe entry.value.value.table = table
            }
            unsafe places[index] = entry
        }
        return unsafe amqp_table_t(num_entries: Int32(entries.count), entries: places)
    }
}

func withArena<Result>(
    _ body: (Arena) throws(RabbitMQError) -> Result
) throws(RabbitMQError) -> Result {
    let pool = UnsafeMutablePointer<amqp_pool_t>.allocate(capacity: 1)
    // amqp.h, init_amqp_pool and empty_amqp_pool: a pool starts empty and gives all its memory back at once.
    unsafe pool.initialize(to: amqp_pool_t())
    unsafe init_amqp_pool(pool, 4096)
    defer {
        unsafe empty_amqp_pool(pool)
        unsafe pool.deallocate()
    }
    return try unsafe body(Arena(pool: pool))
}

extension amqp_bytes_t {
    /// Points to the buffer; valid as long as the buffer is. The library does not write to it (amqp.h).
    init(_ buffer: UnsafeBufferPointer<UInt8>) {
        unsafe self.init(len: buffer.count, bytes: UnsafeMutableRawPointer(mutating: buffer.baseAddress))
    }
}

extension String {
    /// A copy; wrong UTF-8 is repaired.
    init(_ bytes: amqp_bytes_t) {
        // amqp.h, amqp_bytes_t: `len` bytes at `bytes`.
        self = unsafe String(decoding: UnsafeRawBufferPointer(start: bytes.bytes, count: bytes.len), as: UTF8.self)
    }
}
