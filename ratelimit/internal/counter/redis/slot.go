package redis

import "bytes"

// slots is the number of slots in a Redis Cluster.
const slots = 16384

// slotOf returns a key's slot: CRC-16/XMODEM of the text between the first { and the next }, or of the whole key if
// that text is empty or missing (Redis Cluster Specification, "Hash tags").
func slotOf(key []byte) uint16 {
	if i := bytes.IndexByte(key, '{'); i >= 0 {
		if n := bytes.IndexByte(key[i+1:], '}'); n > 0 {
			key = key[i+1 : i+1+n]
		}
	}
	var crc uint16
	for _, b := range key {
		crc = crc<<8 ^ crc16[byte(crc>>8)^b]
	}
	return crc % slots
}

var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
