package secret

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// MAC is the 32-byte HMAC-SHA256 of the parts under the current root key. The split counts: ("ab", "c") and ("a",
// "bc") differ.
func (r *Root) MAC(p Purpose, parts ...string) []byte {
	return r.of(p)[0].mac(parts)
}

// MACs is MAC under the current and each previous root key, in this order: a stored value that equals
// one of them was made of the same parts.
func (r *Root) MACs(p Purpose, parts ...string) [][]byte {
	all := r.of(p)
	out := make([][]byte, len(all))
	for i := range all {
		out[i] = all[i].mac(parts)
	}
	return out
}

func (k *keys) mac(parts []string) []byte {
	h := k.macs.Get().(hash.Hash)
	defer k.macs.Put(h)
	h.Reset()
	buf := make([]byte, 0, 256)
	for _, part := range parts {
		buf = binary.AppendUvarint(buf, uint64(len(part)))
		buf = append(buf, part...)
	}
	h.Write(buf)
	return h.Sum(make([]byte, 0, sha256.Size))
}
