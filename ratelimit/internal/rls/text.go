package rls

import "strconv"

// AppendText appends the request in protobuf's text form, on one line, for people to read and for traces. The text may
// contain personal data. It is a copy: it shares no memory with the bytes of the message.
func (r *Request) AppendText(b []byte) []byte {
	start := len(b)
	if r.Domain != "" {
		b = strconv.AppendQuote(append(b, "domain:"...), r.Domain)
	}
	for i := range r.Descriptors {
		b = append(space(b, start), "descriptors:"...)
		b = r.Descriptors[i].appendText(b)
	}
	if r.HitsAddend != 0 {
		b = strconv.AppendUint(append(space(b, start), "hits_addend:"...), uint64(r.HitsAddend), 10)
	}
	return b
}

func (d *Descriptor) appendText(b []byte) []byte {
	b = append(b, '{')
	start := len(b)
	for _, e := range d.Entries {
		b = append(space(b, start), "entries:{key:"...)
		b = strconv.AppendQuote(b, e.Key)
		b = strconv.AppendQuote(append(b, " value:"...), e.Value)
		b = append(b, '}')
	}
	if d.HasLimit {
		b = strconv.AppendUint(append(space(b, start), "limit:{requests_per_unit:"...), uint64(d.Limit.PerUnit), 10)
		b = strconv.AppendInt(append(b, " unit:"...), int64(d.Limit.Unit), 10)
		b = append(b, '}')
	}
	if d.HasHits {
		b = strconv.AppendUint(append(space(b, start), "hits_addend:{value:"...), d.Hits, 10)
		b = append(b, '}')
	}
	if d.Negative {
		b = append(space(b, start), "is_negative_hits:true"...)
	}
	return append(b, '}')
}

// space appends a space, unless b has nothing after index start.
func space(b []byte, start int) []byte {
	if len(b) > start {
		return append(b, ' ')
	}
	return b
}
