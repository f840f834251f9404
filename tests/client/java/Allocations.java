import java.util.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.rebalance.*;
import org.apache.rocketmq.common.message.MessageQueue;
/** Makes allocations.json: what each strategy of the Java client gives to each consumer. */
public class Allocations {
  static String room(String s){ return s.split("[@-]")[0]; }
  public static void main(String[] a){
    AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
    byRoom.setConsumeridcs(new HashSet<>(Arrays.asList("east","west")));
    AllocateMachineRoomNearby.MachineRoomResolver r = new AllocateMachineRoomNearby.MachineRoomResolver(){
      public String brokerDeployIn(MessageQueue q){ return room(q.getBrokerName()); }
      public String consumerDeployIn(String c){ return room(c); }};
    Map<String, AllocateMessageQueueStrategy> s = new LinkedHashMap<>();
    s.put("averagely", new AllocateMessageQueueAveragely());
    s.put("by_circle", new AllocateMessageQueueAveragelyByCircle());
    s.put("by_machine_room", byRoom);
    s.put("machine_room_nearby", new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), r));
    s.put("consistent_hash", new AllocateMessageQueueConsistentHash());
    s.put("consistent_hash_3", new AllocateMessageQueueConsistentHash(3));
    String[][] consumers = {
      {"east-10.0.0.1@7"}, {"east-10.0.0.1@7","west-10.0.0.2@8"},
      {"east-10.0.0.1@7","east-10.0.0.3@9","west-10.0.0.2@8"},
      {"east-a","east-b","east-c","west-d","west-e","\u043f\u044f\u0442\u044c-f","zoo-g"}};
    String[] brokers = {"east@a","west@b","north@c"};
    StringBuilder out = new StringBuilder("[\n"); boolean first=true;
    for (String[] c : consumers) for (int n : new int[]{1,4,9}) {
      List<String> cids = new ArrayList<>(Arrays.asList(c)); Collections.sort(cids);
      List<MessageQueue> mqs = new ArrayList<>();
      for (String b : brokers) for (int i=0;i<n;i++) mqs.add(new MessageQueue("topic", b, i));
      Collections.sort(mqs);
      for (var e : s.entrySet()) {
        if(!first) out.append(",\n"); first=false;
        out.append("{\"strategy\": \""+e.getKey()+"\", \"queues_per_broker\": "+n+", \"parts\": {");
        boolean f2=true;
        for (String cid : cids) {
          if(!f2) out.append(", "); f2=false;
          out.append("\""+cid+"\": [");
          boolean f3=true;
          for (MessageQueue q : e.getValue().allocate("g", cid, mqs, cids)) { if(!f3) out.append(", "); f3=false; out.append("[\""+q.getBrokerName()+"\", "+q.getQueueId()+"]"); }
          out.append("]");
        }
        out.append("}}");
      }
    }
    System.out.println(out.append("\n]"));
  }
}
