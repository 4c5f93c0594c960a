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

// membersOf returns the members of the objects, of which the later ones win. An object may be nil.
func membersOf(objects ...json.RawMessage) map[string]json.RawMessage {
	members := map[string]json.RawMessage{}
	for _, o := range objects {
		if len(o) > 0 {
			_ = json.Unmarshal(o, &members) // valid: checked when it was received, or from PostgreSQL
		}
	}
	return members
}

// Merge returns the object under with the members of over, which win. Either may be nil.
func Merge(under, over json.RawMessage) json.RawMessage { return MustJSON(membersOf(under, over)) }
