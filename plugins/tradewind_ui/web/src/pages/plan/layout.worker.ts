// The worker is elk's own: it answers the messages of `elk-api`.
import "elkjs/lib/elk-worker.min.js";
