package flow

import (
	"encoding/json"
)

// MustJSON returns v as JSON text. v consists of strings, bools and maps of them, or of JSON out of PostgreSQL.
func MustJSON(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// Merge returns an object with the members of a second one put over it. Either may be nil.
func Merge(under, over json.RawMessage) json.RawMessage {
	members := map[string]json.RawMessage{}
	for _, o := range []json.RawMessage{under, over} {
		if len(o) > 0 {
			_ = json.Unmarshal(o, &members) // both were checked
		}
	}
	return MustJSON(members)
}
