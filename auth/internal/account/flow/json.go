package flow

import (
	"encoding/json"
)

// MustJSON returns v as JSON text. v must be a value that cannot fail to encode: strings, bools, maps of them, or JSON
// from PostgreSQL.
func MustJSON(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// Merge returns the object under with the members of over, which win. Either may be nil.
func Merge(under, over json.RawMessage) json.RawMessage {
	members := map[string]json.RawMessage{}
	for _, o := range []json.RawMessage{under, over} {
		if len(o) > 0 {
			_ = json.Unmarshal(o, &members) // both were checked
		}
	}
	return MustJSON(members)
}
